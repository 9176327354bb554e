"""Which optimizers' steps grow with the gradient."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from benchmarks.defaults.optimizers import Lion
from gradwire.optimizer.torch_scale import optimizer_scale

Make = Callable[[Any], torch.optim.Optimizer]


class OwnDescent(torch.optim.Optimizer):
    """Plain descent that takes its options in its own way."""

    def __init__(self, parameters: Iterable[torch.Tensor], options: Any) -> None:
        super().__init__(parameters, {"pace": options.pace})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["pace"])


class Options:
    pace = 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, torch.tensor(0.1), momentum=0.9, dampening=0.5),
        lambda p: torch.optim.SGD(p, 0.0, maximize=True),
        lambda p: torch.optim.ASGD(p, 0.1),
        lambda p: torch.optim.LBFGS(p, 0.1, line_search_fn="strong_wolfe"),
        lambda p: OwnDescent(p, Options()),
    ],
    ids=["SGD", "Nesterov", "tensor", "maximize", "ASGD", "LBFGS", "own"],
)
def test_where_steps_grow_with_the_gradient_their_mean_is_ddps_step(make: Make) -> None:
    assert optimizer_scale(make([torch.zeros(3, 3, requires_grad=True)])) == "mean"


@pytest.mark.parametrize(
    "make",
    [
        *[
            getattr(torch.optim, name)
            for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad",
                         "Adadelta", "Rprop", "SparseAdam", "Adafactor", "Muon")
            if hasattr(torch.optim, name)
        ],
        pytest.param(
            lambda p: torch.optim.AdamW(p, 1e-3, fused=True, amsgrad=True), id="fused AdamW"
        ),
        pytest.param(
            lambda p: torch.optim.Adam(p, torch.tensor(1e-3), capturable=True), id="capturable Adam"
        ),
        pytest.param(lambda p: Lion(p, 1e-4), id="Lion"),
    ],
)  # fmt: skip
def test_where_steps_are_of_one_size_it_matters_how_far_they_agree(make: Make) -> None:
    assert optimizer_scale(make([torch.zeros(3, 3, requires_grad=True)])) == "agreement"
