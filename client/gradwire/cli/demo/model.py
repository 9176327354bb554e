"""A small character transformer: about 0.8 million parameters with the defaults.

A decoder with learned positions and normalization before each block, as in GPT-2 [1]_.

References
----------
.. [1] A. Radford et al., "Language models are unsupervised multitask learners", 2019.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.cli.demo.text import VOCABULARY, Batches

CONTEXT: Final = 64
WIDTH: Final = 128
LAYERS: Final = 4
HEADS: Final = 4

EVALUATION_BATCH: Final = 64
EVALUATION_BATCHES: Final = 12


class Block(nn.Module):
    """Attention, then a perceptron, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_perceptron = nn.LayerNorm(WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, context, width) to the same shape."""
        batch, context, _ = x.shape
        heads = self.query_key_value(self.norm_attention(x))
        query, key, value = heads.view(batch, context, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, context, WIDTH))
        result: Tensor = x + self.perceptron(self.norm_perceptron(x))
        return result


class CharTransformer(nn.Module):
    """Predicts the next character from up to `CONTEXT` characters before it."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.predict = nn.Linear(WIDTH, VOCABULARY)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        """Map codes of shape (batch, context) to scores of shape (batch, context, vocabulary)."""
        x = self.characters(characters) + self.positions[: characters.shape[1]]
        scores: Tensor = self.predict(self.norm(self.blocks(x)))
        return scores


def new_model() -> CharTransformer:
    """Return the model with which all workers begin, and the worker alone."""
    torch.manual_seed(0)
    return CharTransformer()


def loss_of(
    model: nn.Module, inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> Tensor:
    """Return the mean cross entropy per character, in nats."""
    scores = model(torch.from_numpy(inputs))
    return functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(targets).flatten())


@torch.no_grad()
def evaluate(model: nn.Module, held_out: npt.NDArray[np.uint8]) -> float:
    """Return the loss on fixed windows of the held-out text."""
    batches = Batches(held_out, batch=EVALUATION_BATCH, context=CONTEXT, seed=0)
    losses = [loss_of(model, *batches.next()).item() for _ in range(EVALUATION_BATCHES)]
    return sum(losses) / len(losses)
