"""Models of characters: what comes next in the source text of Python's standard library."""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.convergence.tasks import BATCH, CONTEXT, Batch, windows
from gradwire.cli.demo.text import VOCABULARY, load_text

WIDTH: Final = 64


@cache
def _text() -> npt.NDArray[np.uint8]:
    return load_text()[0]


def draw(random: np.random.Generator) -> Batch:
    """Return windows (batch, context) of the text, and, one character on, what to predict."""
    return windows(_text(), random, BATCH)


def next_character(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the cross entropy in nats."""
    inputs, targets = batch
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets)


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, 32)
        self.layers = nn.LSTM(32, 96, batch_first=True)
        self.predict = nn.Linear(96, VOCABULARY)

    def forward(self, characters: Tensor) -> Tensor:
        """Map codes (batch, context) to scores (batch, context, vocabulary)."""
        scores: Tensor = self.predict(self.layers(self.characters(characters))[0])
        return scores


class Transformer(nn.Module):
    """A small GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.predict = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
        self.register_buffer(
            "later", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False
        )

    def forward(self, characters: Tensor) -> Tensor:
        """Map codes (batch, context) to scores (batch, context, vocabulary)."""
        embedded = self.characters(characters) + self.positions
        scores: Tensor = self.predict(self.layers(embedded, mask=self.later, is_causal=True))
        return scores
