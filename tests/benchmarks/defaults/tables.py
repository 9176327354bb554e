"""Tables of numbers: ratings of items by users, nodes of a graph, values of a function.

The function is that of benchmark `convergence`.
"""

from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.convergence.tasks import FEATURES

SEED: Final = 2020

# Ratings.
USERS: Final = 600
ITEMS: Final = 400
RATINGS: Final = 60_000
RATINGS_HELD_OUT: Final = 4_000
RATINGS_BATCH: Final = 64
RANK: Final = 6
FACTORS: Final = 16

# A graph.
NODES: Final = 600
NODES_HELD_OUT: Final = 200
NODE_FEATURES: Final = 24
NODE_CLASSES: Final = 6
NODES_BATCH: Final = 16


@cache
def _ratings() -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng(SEED)
    # Few users and items are in most ratings, as everywhere.
    user = (USERS * random.random(RATINGS) ** 2).astype(np.int64)
    item = (ITEMS * random.random(RATINGS) ** 2).astype(np.int64)
    of_user, of_item = random.standard_normal((USERS, RANK)), random.standard_normal((ITEMS, RANK))
    exact = (of_user[user] * of_item[item]).sum(1) / RANK**0.5 + 0.5 * of_item[item, 0]
    rating = exact + 0.3 * random.standard_normal(RATINGS)
    return (torch.from_numpy(user), torch.from_numpy(item),
            torch.from_numpy(rating.astype(np.float32)))  # fmt: skip


def draw_ratings(random: np.random.Generator) -> tuple[Tensor, ...]:
    """Return users, items, and how these were rated by those."""
    chosen = torch.from_numpy(random.integers(RATINGS_HELD_OUT, RATINGS, RATINGS_BATCH))
    return tuple(column[chosen] for column in _ratings())


def held_out_ratings() -> tuple[Tensor, ...]:
    """Return what a model is judged by."""
    return tuple(column[:RATINGS_HELD_OUT] for column in _ratings())


def rating_error(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the mean square error."""
    user, item, rating = batch
    return functional.mse_loss(model(user, item), rating)


class Factors(nn.Module):
    """Matrix factorization with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, FACTORS), nn.Embedding(ITEMS, FACTORS)
        self.user_bias, self.item_bias = nn.Embedding(USERS, 1), nn.Embedding(ITEMS, 1)
        for embedding in (self.users, self.items):
            nn.init.normal_(embedding.weight, std=0.1)
        for embedding in (self.user_bias, self.item_bias):
            nn.init.zeros_(embedding.weight)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Map numbers of users and items (batch,) to ratings (batch,)."""
        product = (self.users(user) * self.items(item)).sum(1)
        rating: Tensor = product + self.user_bias(user).squeeze(1) + self.item_bias(item).squeeze(1)
        return rating


class Recommender(nn.Module):
    """A perceptron of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, FACTORS), nn.Embedding(ITEMS, FACTORS)
        self.rate = nn.Sequential(
            nn.Linear(2 * FACTORS, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Map numbers of users and items (batch,) to ratings (batch,)."""
        rating: Tensor = self.rate(torch.cat((self.users(user), self.items(item)), 1))
        return rating.squeeze(1)


@cache
def _graph() -> tuple[Tensor, Tensor, Tensor]:
    """Return features and classes of nodes, and how they are linked, normalized."""
    random = np.random.default_rng(SEED)
    label = random.integers(0, NODE_CLASSES, NODES)
    centers = random.standard_normal((NODE_CLASSES, NODE_FEATURES))
    features = centers[label] + 3.0 * random.standard_normal((NODES, NODE_FEATURES))
    alike = label[:, None] == label[None, :]
    links = random.random((NODES, NODES)) < np.where(alike, 0.03, 0.006)
    links = np.maximum(links, links.T) | np.eye(NODES, dtype=bool)
    degree = links.sum(1)
    normalized = links / np.sqrt(degree[:, None] * degree[None, :])
    return (torch.from_numpy(features.astype(np.float32)), torch.from_numpy(label),
            torch.from_numpy(normalized.astype(np.float32)))  # fmt: skip


def draw_nodes(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return numbers of nodes, and their classes."""
    chosen = torch.from_numpy(random.integers(NODES_HELD_OUT, NODES, NODES_BATCH))
    return chosen, _graph()[1][chosen]


def held_out_nodes() -> tuple[Tensor, Tensor]:
    """Return what a model is judged by."""
    chosen = torch.arange(NODES_HELD_OUT)
    return chosen, _graph()[1][chosen]


def node_error(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the cross entropy in nats."""
    nodes, labels = batch
    return functional.cross_entropy(model(nodes), labels)


class GraphNet(nn.Module):
    """Two graph convolutions: T. Kipf and M. Welling, ICLR 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(NODE_FEATURES, 64), nn.Linear(64, 64)
        self.classify = nn.Linear(64, NODE_CLASSES)

    def forward(self, nodes: Tensor) -> Tensor:
        """Map numbers of nodes (batch,) to scores (batch, classes)."""
        features, _, links = _graph()
        features = functional.dropout(features, 0.2, self.training)
        hidden = functional.relu(links @ self.first(features))
        hidden = functional.relu(links[nodes] @ self.second(hidden))
        scores: Tensor = self.classify(hidden)
        return scores


def perceptron() -> nn.Module:
    """Return a net that is larger than the one to be learned."""
    return nn.Sequential(
        nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
    )


def value_error(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Return the mean square error."""
    inputs, values = batch
    return functional.mse_loss(model(inputs), values)
