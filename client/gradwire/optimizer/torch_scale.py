"""`optimizer_scale`: by what W workers' changes are multiplied so that they make DDP's step.

DDP steps along the mean of W gradients. Here every worker steps along its own gradient, and the
steps add up.

- *Steps that grow with the gradient*, as SGD's: the sum of W steps is W times the step of the mean
  gradient, whatever the gradients are. So each counts 1/W.
- *Steps that do not*, as those of Adam, RMSprop, Adagrad or Lion, which divide by the size of their
  gradients. Where most of a worker's gradient is noise, the mean of W gradients is smaller by √W
  than one of them, so what DDP divides by is smaller by √W, and the sum of W steps is √W times
  DDP's. So each counts 1/√W.

Which of both an optimizer is, is tried out: a copy of it makes a step of a few parameters along a
gradient, another one along twice that. So it holds for optimizers that are not torch's, too.
"""

import inspect
import logging
from typing import Any, Final, Literal

import torch

logger = logging.getLogger("gradwire.session")

EXECUTION: Final = ("capturable", "differentiable", "foreach", "fused")
"""Options that say how an optimizer computes, and not what; some need a GPU."""

TRIED_STEPS: Final = 10
"""RAdam makes its first five steps as SGD does."""

TRIED_RATE: Final = 1e-3
"""Small, so that parameters stay near 0 and are not decayed."""

PROPORTIONAL_FROM: Final = 2**0.5
"""Steps grow with the gradient, if twice the gradient makes a step at least so much longer: half
way between 1 and 2."""


def optimizer_scale(optimizer: torch.optim.Optimizer) -> Literal["mean", "sqrt"]:
    """Return the rule with which workers make together the steps that DDP makes.

    Parameters
    ----------
    optimizer : Optimizer
        Tuned for DDP; it is left as it is.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        return "mean"  # its steps, of Newton's kind, are the same whatever the number of samples
    try:
        grows = _step_length(optimizer, 2.0) > PROPORTIONAL_FROM * _step_length(optimizer, 1.0)
    except Exception as error:  # whatever an optimizer that is not torch's may raise
        # Who keeps two moments divides by one of them. The mean is the shorter step of both.
        grows = "betas" not in optimizer.defaults
        logger.debug("%s could not be tried out: %s", type(optimizer).__name__, error)
    return "mean" if grows else "sqrt"


def _step_length(optimizer: torch.optim.Optimizer, gradient: float) -> float:
    """Return how long the last of a few steps of such an optimizer is, along one gradient."""
    parameter = torch.nn.Parameter(torch.zeros(4, 4))  # a matrix: there are some for nothing else
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
