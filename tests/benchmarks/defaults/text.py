"""Models of characters: what comes next in the source text of Python's standard library."""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.cli.demo.text import VOCABULARY, load_text

BATCH: Final = 8
CONTEXT: Final = 32
WINDOWS_HELD_OUT: Final = 256
SEED: Final = 2020
WIDTH: Final = 64


@cache
def _text() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    return load_text()


def draw(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return windows (batch, context) of the text, and, one character on, what to predict."""
    return _windows(_text()[0], random, BATCH)


@cache
def held_out() -> tuple[Tensor, Tensor]:
    """Return the windows that a model is judged by, of modules that nothing is drawn from."""
    return _windows(_text()[1], np.random.default_rng(SEED), WINDOWS_HELD_OUT)


def _windows(
    codes: npt.NDArray[np.uint8], random: np.random.Generator, count: int
) -> tuple[Tensor, Tensor]:
    starts = random.integers(0, len(codes) - CONTEXT - 1, count)
    drawn = codes[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
    return torch.from_numpy(drawn[:, :-1]), torch.from_numpy(drawn[:, 1:])


def next_character(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the cross entropy in nats."""
    inputs, targets = batch
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


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
