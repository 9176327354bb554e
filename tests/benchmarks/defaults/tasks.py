"""What benchmark `defaults` trains: a script tuned for DDP of each kind that people bring.

Those tasks that are held back were not used to choose gradwire's defaults; the others were. All
learn from data that every machine has: the digits of scikit-learn, the source text of Python's
standard library, and functions that are made up here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from benchmarks.convergence.tasks import draw_values, function, windows_held_out
from benchmarks.defaults import images, tables, text
from benchmarks.defaults.optimizers import Lion, Make, decay_groups, of
from benchmarks.defaults.schedules import Schedule, constant, cosine, one_cycle, plateau, warm_up

Batch: TypeAlias = tuple[Tensor, ...]
"""Inputs and targets, one sample a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One script."""

    name: str
    model: Callable[[], nn.Module]
    optimizer: Make
    """From a model and a learning rate."""
    schedule: Callable[[Optimizer, int], Schedule] = constant
    """From an optimizer and the number of steps."""
    draw: Callable[[np.random.Generator], Batch]
    """Returns the samples of one worker's step."""
    loss: Callable[[nn.Module, Batch], Tensor]
    held_out: Callable[[], Batch]
    rates: Sequence[float]
    """Learning rates that DDP is tried with."""
    steps: int = 400
    clip: float | None = None
    """Norm that gradients are clipped to."""
    is_held_back: bool = False
    """Whether it was not used to choose defaults."""

    def new_model(self, seed: int) -> nn.Module:
        """Return the model that all methods begin with."""
        torch.manual_seed(seed)
        return self.model()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Return the loss on what is held out."""
        model.eval()
        loss = self.loss(model, self.held_out()).item()
        model.train()
        return loss


TASKS: Final = {
    task.name: task
    for task in (
        Task(
            name="residual-sgd",
            model=images.residual_net,
            optimizer=of(SGD, momentum=0.9, weight_decay=5e-4),
            draw=images.draw_labelled,
            loss=images.classification,
            held_out=images.held_out,
            rates=(0.01, 0.03, 0.1, 0.3),
        ),
        Task(
            name="residual-adam",
            model=images.residual_net,
            optimizer=of(Adam),
            draw=images.draw_labelled,
            loss=images.classification,
            held_out=images.held_out,
            rates=(1e-3, 3e-3, 1e-2, 3e-2),
        ),
        Task(
            name="vit",
            model=images.VisionTransformer,
            optimizer=decay_groups(AdamW, 0.05),
            schedule=warm_up,
            draw=images.draw_labelled,
            loss=images.classification,
            held_out=images.held_out,
            rates=(2e-3, 4e-3, 8e-3, 1.6e-2),
        ),
        Task(
            name="lstm",
            model=text.Recurrent,
            optimizer=of(AdamW),
            schedule=cosine,
            draw=text.draw,
            loss=text.next_character,
            held_out=windows_held_out,
            rates=(5e-3, 1e-2, 2e-2, 4e-2),
            clip=1.0,
        ),
        Task(
            name="softmax",
            model=images.quadratic_softmax,
            optimizer=of(SGD),
            draw=images.draw_flat,
            loss=images.classification,
            held_out=images.held_out_flat,
            rates=(0.01, 0.03, 0.1, 0.3),
        ),
        Task(
            name="factors-adagrad",
            model=tables.Factors,
            optimizer=of(Adagrad),
            draw=tables.draw_ratings,
            loss=tables.rating_error,
            held_out=tables.held_out_ratings,
            rates=(0.05, 0.1, 0.2, 0.4),
        ),
        Task(
            name="factors-rmsprop",
            model=tables.Factors,
            optimizer=of(RMSprop),
            draw=tables.draw_ratings,
            loss=tables.rating_error,
            held_out=tables.held_out_ratings,
            rates=(3.5e-3, 7e-3, 1.4e-2, 2.8e-2),
        ),
        Task(
            name="gpt",
            model=text.Transformer,
            optimizer=of(Adam, betas=(0.9, 0.99)),
            schedule=one_cycle,
            draw=text.draw,
            loss=text.next_character,
            held_out=windows_held_out,
            rates=(4e-3, 8e-3, 1.6e-2, 3.2e-2),
            is_held_back=True,
        ),
        Task(
            name="recommender",
            model=tables.Recommender,
            optimizer=of(Adam),
            draw=tables.draw_ratings,
            loss=tables.rating_error,
            held_out=tables.held_out_ratings,
            rates=(1e-2, 3e-2, 1e-1, 3e-1),
            is_held_back=True,
        ),
        Task(
            name="autoencoder",
            model=images.autoencoder,
            optimizer=of(NAdam),
            schedule=plateau,
            draw=images.draw_flat,
            loss=images.reconstruction,
            held_out=images.held_out_flat,
            rates=(2e-3, 5e-3, 1e-2, 2e-2),
        ),
        Task(
            name="groupnorm",
            model=images.group_norm_net,
            optimizer=decay_groups(SGD, 1e-3, momentum=0.9, nesterov=True),
            schedule=cosine,
            draw=images.draw_labelled,
            loss=images.classification,
            held_out=images.held_out,
            rates=(0.01, 0.03, 0.1, 0.3),
        ),
        Task(
            name="unet",
            model=images.UNet,
            optimizer=of(Adam),
            draw=images.draw_noisy,
            loss=images.denoising,
            held_out=images.held_out_noisy,
            rates=(1e-3, 3e-3, 1e-2, 3e-2),
            is_held_back=True,
        ),
        Task(
            name="graph-lion",
            model=tables.GraphNet,
            optimizer=of(Lion),
            draw=tables.draw_nodes,
            loss=tables.node_error,
            held_out=tables.held_out_nodes,
            rates=(3e-5, 1e-4, 3e-4, 1e-3),
            is_held_back=True,
        ),
        Task(
            name="perceptron-momentum",
            model=tables.perceptron,
            optimizer=of(SGD, momentum=0.9),
            schedule=one_cycle,
            draw=draw_values,
            loss=tables.value_error,
            held_out=lambda: function()[1],
            rates=(0.0125, 0.025, 0.05, 0.1),
        ),
    )
}
