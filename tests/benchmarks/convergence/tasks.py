"""What is learned: three tasks, on data that every machine has.

Small enough that a comparison of all methods, rates and seeds takes minutes, and unlike each other:
a transformer with AdamW, a convolutional net with BatchNorm and momentum, a plain perceptron.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler

from gradwire.cli.demo.text import VOCABULARY, load_text
from support.digits import load_digits

Batch: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets, one sample a row."""

BATCH: Final = 8
"""Samples of a step at one worker."""

DATA_SEED: Final = 2020
"""Of what is the same in all runs: which samples are held out, and the function to be learned."""

# Characters.
CONTEXT: Final = 32
WIDTH: Final = 64
HEADS: Final = 4
LAYERS: Final = 2
WINDOWS_HELD_OUT: Final = 256
WARM_UP_STEPS: Final = 50
WARM_UP_FROM: Final = 0.1
"""Part of the learning rate that a transformer begins with."""

# Digits.
HELD_OUT: Final = 600
NOISE: Final = 0.4
"""Standard deviation of what is added to pixels of 0 to 1; so few are soon known by heart."""

# Regression.
SAMPLES: Final = 40_000
SAMPLES_HELD_OUT: Final = 2_000
FEATURES: Final = 32


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to learn."""

    name: str
    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[nn.Module, float], torch.optim.Optimizer]
    """From a model and a learning rate."""
    make_schedule: Callable[[torch.optim.Optimizer], LRScheduler]
    """Of the learning rate, the same with every method."""
    draw: Callable[[np.random.Generator], Batch]
    """Returns the samples of one worker's step."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Of what a model says and what is right, as a mean."""
    held_out: Callable[[], Batch]
    steps: int
    rates: Sequence[float]
    """Learning rates that every method is tried with, for 4 workers."""
    more_workers: float
    """By what they are multiplied for 16."""

    def new_model(self, seed: int) -> nn.Module:
        """Return the model that all methods begin with."""
        torch.manual_seed(seed)
        return self.make_model()

    def loss_of(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        inputs, targets = batch
        return self.loss(model(inputs), targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Return the loss on what is held out."""
        model.eval()
        loss = self.loss_of(model, self.held_out()).item()
        model.train()
        return loss


def samples_of(seed: int, rank: int) -> np.random.Generator:
    """Return what one worker's samples are drawn with: the same ones whatever the method."""
    return np.random.default_rng([seed, rank])


class Block(nn.Module):
    """Attention and a perceptron, each beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, context, width) to the same."""
        batch, context, _ = x.shape
        heads = self.attend(self.norm(x)).view(batch, context, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, context, WIDTH))
        result: Tensor = x + self.perceptron(x)
        return result


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.predict = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        """Map codes (batch, context) to scores (batch * context, vocabulary)."""
        scores: Tensor = self.predict(self.blocks(self.characters(characters) + self.positions))
        return scores.flatten(0, 1)


def windows(codes: npt.NDArray[np.uint8], random: np.random.Generator, count: int) -> Batch:
    """Return windows of a text, and, one character on, what to predict."""
    starts = random.integers(0, len(codes) - CONTEXT - 1, count)
    drawn = codes[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int64)
    return torch.from_numpy(drawn[:, :-1]), torch.from_numpy(drawn[:, 1:]).flatten()


def convolutional_net() -> nn.Module:
    """Return a net for images of 8 x 8."""
    layers: list[nn.Module] = []
    channels = (1, 32, 64, 64, 128)
    for i, (before, after) in enumerate(pairwise(channels)):
        convolution = nn.Conv2d(before, after, 3, stride=1 + i % 2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * channels[-1], 10))


@cache
def images() -> tuple[Batch, Batch]:
    """Return the digits to learn, and those held out."""
    pixels, labels = load_digits()
    order = np.random.default_rng(DATA_SEED).permutation(len(labels))
    inputs = torch.from_numpy(pixels[order].astype(np.float32) / 16 - 0.3).view(-1, 1, 8, 8)
    targets = torch.from_numpy(labels[order].astype(np.int64))
    return (inputs[HELD_OUT:], targets[HELD_OUT:]), (inputs[:HELD_OUT], targets[:HELD_OUT])


def draw_images(random: np.random.Generator) -> Batch:
    """Return images, moved by up to a pixel and noisy."""
    inputs, targets = images()[0]
    chosen = torch.from_numpy(random.integers(0, len(targets), BATCH))
    down, right = random.integers(-1, 2, 2).tolist()
    moved = torch.roll(inputs[chosen], (down, right), (2, 3))
    noise = torch.from_numpy(random.standard_normal(moved.shape, np.float32))
    return moved + NOISE * noise, targets[chosen]


def perceptron() -> nn.Module:
    """Return a net that is larger than the one to be learned."""
    return nn.Sequential(
        nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
    )


@cache
def function() -> tuple[Batch, Batch]:
    """Return values of a random net, with some noise: those to learn from, and those held out."""
    random = torch.Generator().manual_seed(DATA_SEED)
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                        nn.Linear(64, 1))  # fmt: skip
    inputs = torch.randn(SAMPLES, FEATURES, generator=random)
    with torch.no_grad():
        for parameter in net.parameters():
            wide = 1.5 / FEATURES**0.5 if parameter.dim() > 1 else 0.5
            parameter.copy_(wide * torch.randn(parameter.shape, generator=random))
        values = net(inputs)
    values = (values - values.mean()) / values.std()
    values += 0.1 * torch.randn(values.shape, generator=random)
    known, unknown = slice(SAMPLES_HELD_OUT, None), slice(SAMPLES_HELD_OUT)
    return (inputs[known], values[known]), (inputs[unknown], values[unknown])


def draw_values(random: np.random.Generator) -> Batch:
    """Return values of the function."""
    inputs, targets = function()[0]
    chosen = torch.from_numpy(random.integers(0, len(targets), BATCH))
    return inputs[chosen], targets[chosen]


@cache
def windows_held_out() -> Batch:
    """Return the windows of text that a model is judged by."""
    return windows(load_text()[1], np.random.default_rng(DATA_SEED), WINDOWS_HELD_OUT)


@cache
def _text() -> npt.NDArray[np.uint8]:
    return load_text()[0]


def adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return AdamW as transformers are trained with it."""
    return torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.99), weight_decay=0.01)


def sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return SGD with the usual momentum."""
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9)


def warm_up(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Begin with a lower rate, as transformers are trained."""
    return LinearLR(optimizer, start_factor=WARM_UP_FROM, total_iters=WARM_UP_STEPS)


def constant(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Leave the rate as it is."""
    return LambdaLR(optimizer, lambda _: 1.0)


TASKS: Final = {
    task.name: task
    for task in (
        Task(
            name="characters",
            make_model=Transformer,
            make_optimizer=adamw,
            make_schedule=warm_up,
            draw=lambda random: windows(_text(), random, BATCH),
            loss=functional.cross_entropy,
            held_out=windows_held_out,
            steps=600,
            rates=(1e-3, 2e-3, 4e-3),
            more_workers=2.0,
        ),
        Task(
            name="digits",
            make_model=convolutional_net,
            make_optimizer=sgd,
            make_schedule=constant,
            draw=draw_images,
            loss=functional.cross_entropy,
            held_out=lambda: images()[1],
            steps=600,
            rates=(5e-3, 1e-2, 2e-2),
            more_workers=2.0,
        ),
        Task(
            name="regression",
            make_model=perceptron,
            make_optimizer=sgd,
            make_schedule=constant,
            draw=draw_values,
            loss=functional.mse_loss,
            held_out=lambda: function()[1],
            steps=600,
            rates=(1e-2, 2e-2, 4e-2),
            more_workers=2.0,
        ),
    )
}
