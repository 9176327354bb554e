"""Nets for images of 8 x 8: the digits of scikit-learn, moved and noisy."""

from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from support.digits import load_digits

BATCH: Final = 16
HELD_OUT: Final = 600
NOISE: Final = 0.4
"""Standard deviation of what is added to pixels of 0 to 1; so few are soon known by heart."""

ORDER_SEED: Final = 2020
WIDTH: Final = 48


@cache
def _images() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits()
    order = np.random.default_rng(ORDER_SEED).permutation(len(labels))
    inputs = torch.from_numpy(pixels[order].astype(np.float32) / 16 - 0.3).view(-1, 1, 8, 8)
    return inputs, torch.from_numpy(labels[order].astype(np.int64))


def draw_labelled(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return images (batch, 1, 8, 8), moved by up to a pixel and noisy, and what they show."""
    clean, labels = _drawn(random)
    return clean + _noise(random, clean), labels


def draw_flat(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return the same as rows (batch, 64)."""
    inputs, labels = draw_labelled(random)
    return inputs.flatten(1), labels


def draw_noisy(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy images and what they were without noise."""
    clean, _ = _drawn(random)
    return clean + 2 * _noise(random, clean), clean


def _drawn(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    inputs, labels = _images()
    chosen = torch.from_numpy(random.integers(HELD_OUT, len(labels), BATCH))
    down, right = random.integers(-1, 2, 2).tolist()
    return torch.roll(inputs[chosen], (down, right), (2, 3)), labels[chosen]


def _noise(random: np.random.Generator, images: Tensor) -> Tensor:
    return NOISE * torch.from_numpy(random.standard_normal(images.shape, np.float32))


@cache
def held_out() -> tuple[Tensor, Tensor]:
    """Return what a model is judged by, for `draw_labelled`."""
    inputs, labels = _images()
    return inputs[:HELD_OUT], labels[:HELD_OUT]


@cache
def held_out_flat() -> tuple[Tensor, Tensor]:
    """Return it for `draw_flat`."""
    inputs, labels = held_out()
    return inputs.flatten(1), labels


@cache
def held_out_noisy() -> tuple[Tensor, Tensor]:
    """Return it for `draw_noisy`."""
    clean, _ = held_out()
    return clean + 2 * _noise(np.random.default_rng(ORDER_SEED), clean), clean


def classification(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the cross entropy in nats."""
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def reconstruction(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the mean square error of what an autoencoder makes of its input."""
    inputs, _ = batch
    return functional.mse_loss(model(inputs), inputs)


def denoising(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the mean square error of images without their noise."""
    noisy, clean = batch
    return functional.mse_loss(model(noisy), clean)


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.change(x))


class _Products(nn.Module):
    """All products of two inputs."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.pairs = torch.triu_indices(inputs, inputs)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.pairs[0]] * x[:, self.pairs[1]]


def quadratic_softmax() -> nn.Module:
    """Return softmax regression on the products of pixels."""
    return nn.Sequential(_Products(64), nn.Linear(64 * 65 // 2, 10))


def residual_net() -> nn.Module:
    """Return a residual convolutional net with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), _Residual(16),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        _Residual(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def group_norm_net() -> nn.Module:
    """Return a convolutional net with GroupNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GroupNorm(8, 64), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def autoencoder() -> nn.Module:
    """Return a perceptron with a narrow middle."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 12), nn.Linear(12, 128), nn.GELU(),
        nn.Linear(128, 64),
    )  # fmt: skip


class VisionTransformer(nn.Module):
    """Reads an image as 16 patches of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(16, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 1, 8, 8) to scores (batch, 10)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        scores: Tensor = self.classify(self.layers(patches + self.positions).mean(1))
        return scores


class UNet(nn.Module):
    """Takes noise out of images."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ReLU(),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 1, 8, 8) to the same."""
        wide = self.down(images)
        change: Tensor = self.up(torch.cat((wide, self.middle(wide)), 1))
        return images + change
