"""A small word model to measure on: an embedding, whose rows change rarely, and dense layers.

It predicts the next word from the three before it, as in [1]_, in the source text of Python's own
standard library, which is on every machine that has Python.

References
----------
.. [1] Y. Bengio et al., "A neural probabilistic language model", JMLR 3, 2003.
"""

import re
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY: Final = 2_048
"""The most frequent words and signs; all others are one word."""

CONTEXT: Final = 3
WIDTH: Final = 32
HIDDEN: Final = 64
HELD_OUT_EVERY: Final = 10
BATCH: Final = 32
EVALUATION_BATCH: Final = 2_048


class WordModel(nn.Module):
    """Scores of the next word; 205,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = nn.Linear(CONTEXT * WIDTH, HIDDEN)
        self.predict = nn.Linear(HIDDEN, VOCABULARY)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, words: Tensor) -> Tensor:
        """Map words of shape (batch, context) to scores of shape (batch, vocabulary)."""
        embedded = self.words(words).flatten(1)
        scores: Tensor = self.predict(torch.tanh(self.hidden(embedded)))
        return scores


@cache
def load_words() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the words for training and those held out, as numbers below `VOCABULARY`."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [module.read_text(encoding="utf-8", errors="replace") for module in modules]
    words = [re.findall(r"\w+|[^\w\s]|\n", text) for text in texts]
    held_out = [word for text in words[::HELD_OUT_EVERY] for word in text]
    training = [word for i, text in enumerate(words) if i % HELD_OUT_EVERY for word in text]
    frequent = Counter(training).most_common(VOCABULARY - 1)
    numbers = {word: i for i, (word, _) in enumerate(frequent, 1)}
    return (
        np.array([numbers.get(word, 0) for word in training], np.int64),
        np.array([numbers.get(word, 0) for word in held_out], np.int64),
    )


def loss_on(
    model: nn.Module, words: npt.NDArray[np.int64], random: np.random.Generator, batch: int
) -> Tensor:
    """Return the mean cross entropy, in nats, of a random batch."""
    at = random.integers(0, len(words) - CONTEXT, batch)
    context = torch.from_numpy(words[at[:, None] + np.arange(CONTEXT)])
    return functional.cross_entropy(model(context), torch.from_numpy(words[at + CONTEXT]))


@torch.no_grad()
def held_out_loss(model: nn.Module) -> float:
    """Return the loss on a fixed batch of the held-out words."""
    return loss_on(model, load_words()[1], np.random.default_rng(0), EVALUATION_BATCH).item()
