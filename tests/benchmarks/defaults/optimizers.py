"""Optimizers as scripts have them: with groups of their own, or not of torch at all."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import nn

Make: TypeAlias = Callable[[nn.Module, float], torch.optim.Optimizer]
"""Makes an optimizer of a model and a learning rate."""


def of(kind: Callable[..., torch.optim.Optimizer], **options: Any) -> Make:
    """Return what makes an optimizer of all parameters alike."""
    return lambda model, rate: kind(model.parameters(), lr=rate, **options)


def decay_groups(
    kind: Callable[..., torch.optim.Optimizer], weight_decay: float, **options: Any
) -> Make:
    """Return what makes an optimizer that decays matrices and leaves vectors alone."""

    def make(model: nn.Module, rate: float) -> torch.optim.Optimizer:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay},
                  {"params": vectors, "weight_decay": 0.0}]  # fmt: skip
        return kind(groups, lr=rate, **options)

    return make


class Lion(torch.optim.Optimizer):
    """X. Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023.

    Parameters
    ----------
    parameters : iterable of Tensor
    lr : float
    betas : pair of float
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter by the rate."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean = state.setdefault("exp_avg", torch.zeros_like(parameter))
                direction = torch.lerp(parameter.grad, mean, first).sign_()
                parameter.add_(direction, alpha=-group["lr"])
                mean.lerp_(parameter.grad, 1.0 - second)
