"""The demo's model, a small character transformer of about 0.8 million parameters.

It is a decoder with learned positions and normalization before each block, as in GPT-2 (A. Radford
et al., "Language models are unsupervised multitask learners", 2019).
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


class CharTransformer(nn.Module):
    """Predicts the next character from up to `CONTEXT` characters before it."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.predict = nn.Linear(WIDTH, VOCABULARY)
        for parameter in self.parameters():
            if parameter.ndim == 2 and parameter is not self.positions:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        """Map codes of shape (batch, context) to scores of shape (batch, context, vocabulary)."""
        context = characters.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        x = self.characters(characters) + self.positions[:context]
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        scores: Tensor = self.predict(self.norm(x))
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
    batches = Batches(held_out, batch=64, context=CONTEXT, seed=0)
    losses = [loss_of(model, *batches.next()).item() for _ in range(12)]
    return sum(losses) / len(losses)
