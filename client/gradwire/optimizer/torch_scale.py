"""`optimizer_scale`: the factor with which the changes of W workers together make DDP's step.

DDP steps along the mean of W gradients. Here every worker steps along its own gradient, and the
steps add up.

- *Steps that grow with the gradient*, as SGD's: the sum of W steps is W times the step of the mean
  gradient, whatever the gradients are. So each counts 1/W.
- *Steps that do not*, as those of Adam, RMSprop, Adagrad or Lion, which divide by the size of their
  gradients. Where most of a worker's gradient is noise, the mean of W gradients is smaller by √W
  than one of them, so what DDP divides by is smaller by √W, and the sum of W steps is √W times
  DDP's. So each counts 1/√W. Where workers agree, each counts less, down to 1/W; see `agreement`.

A trial tells which kind an optimizer is: one copy of it steps along a gradient, another copy along
twice that gradient. So the rule also holds for optimizers that are not torch's.
"""

import inspect
import logging
from typing import Any, Final, Literal

import torch

logger = logging.getLogger("gradwire.session")

EXECUTION: Final = ("capturable", "differentiable", "foreach", "fused")
"""Options that change how an optimizer computes, and not what; some need a GPU."""

TRIED_STEPS: Final = 10
"""More than five: RAdam makes its first five steps as SGD does."""

TRIED_RATE: Final = 1e-3
"""Small, so that parameters stay near 0 and weight decay does not show."""

PROPORTIONAL_FROM: Final = 2**0.5
"""Steps grow with the gradient if twice the gradient makes a step longer by more than this factor,
half way between 1 and 2."""


def optimizer_scale(optimizer: torch.optim.Optimizer) -> Literal["mean", "agreement"]:
    """Return the rule with which workers together make the steps that DDP makes.

    Parameters
    ----------
    optimizer : Optimizer
        Tuned for DDP. It is not changed. Of one that wraps another one, the wrapped one tells.
    """
    while (wrapped := _wrapped_in(optimizer)) is not None:
        optimizer = wrapped
    if isinstance(optimizer, torch.optim.LBFGS):
        return "mean"  # its steps are Newton's, which do not depend on the number of samples
    try:
        grows = _step_length(optimizer, 2.0) > PROPORTIONAL_FROM * _step_length(optimizer, 1.0)
    except Exception as error:  # an optimizer that is not torch's may raise anything
        # An optimizer with two betas divides by one of its moments. Else "mean" is the safe rule:
        # it makes the shorter step.
        grows = "betas" not in getattr(optimizer, "defaults", {})
        logger.debug("the trial of %s failed: %s", type(optimizer).__name__, error)
    return "mean" if grows else "agreement"


def _wrapped_in(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    held = vars(optimizer).values()
    return next((each for each in held if isinstance(each, torch.optim.Optimizer)), None)


def _step_length(optimizer: torch.optim.Optimizer, gradient: float) -> float:
    """Return the length of the last of `TRIED_STEPS` steps of such an optimizer on one gradient."""
    parameter = torch.nn.Parameter(torch.zeros(4, 4))  # some optimizers take matrices only
    accepted = inspect.signature(type(optimizer)).parameters
    options: dict[str, Any] = {
        name: value
        for name, value in optimizer.defaults.items()
        if name in accepted and name not in EXECUTION
    }
    copy = type(optimizer)([parameter], **{**options, "lr": TRIED_RATE})
    parameter.grad = gradient * (torch.eye(4) + 0.1)
    for _ in range(TRIED_STEPS):
        before = parameter.detach().clone()
        copy.step()
    return float(torch.linalg.vector_norm(parameter.detach() - before))
