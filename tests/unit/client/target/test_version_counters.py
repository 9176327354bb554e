"""Whether a step trained anything: every optimizer's step is noticed, and what torch counts not."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.target.adapters import parameters_of
from gradwire.target.torch_parameters import TorchParameters

WAYS: dict[str, dict[str, bool]] = {
    "plain": {},
    "foreach": {"foreach": True},
    "single": {"foreach": False},
    "fused": {"fused": True},
}


def optimizers() -> Iterator[Any]:
    """Iterate over all optimizers of torch, in each way that they have of working."""
    for name, kind in sorted(vars(torch.optim).items()):
        if not inspect.isclass(kind) or not issubclass(kind, torch.optim.Optimizer):
            continue
        if kind is not torch.optim.Optimizer:
            for way, options in WAYS.items():
                if options.keys() <= inspect.signature(kind).parameters.keys():
                    yield pytest.param(kind, options, id=f"{name}-{way}")


def tensors() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(4, 2))]


def asked(parameters: TorchParameters) -> bool:
    parameters.gather()
    return parameters.changed()


def counted(target: object) -> Any:
    """Return parameters that have just changed, in a way that torch counts."""
    parameters = parameters_of(target)
    first = next(target.parameters()) if isinstance(target, nn.Module) else target[0]  # type: ignore[index]
    with torch.no_grad():
        first.add_(1)
    assert asked(parameters)  # type: ignore[arg-type]
    return parameters


def quiet(target: object) -> Any:
    """Return parameters that were not changed in the last step."""
    parameters = counted(target)
    assert not asked(parameters)
    return parameters


@pytest.mark.parametrize(("kind", "options"), list(optimizers()))
def test_every_optimizer_s_step_is_noticed(kind: Any, options: dict[str, bool]) -> None:
    """The first one also after others were counted; a fused one's, which is not, at the next."""
    target = tensors()
    parameters = counted(target)
    optimizer = kind(target, lr=0.1, **options)

    def closure() -> float:
        optimizer.zero_grad()
        loss: Any = sum(tensor.pow(2).sum() for tensor in target)
        loss.backward()
        if kind is torch.optim.SparseAdam:
            for tensor in target:
                assert tensor.grad is not None
                tensor.grad = tensor.grad.to_sparse()
        return float(loss.item())

    def step() -> bool:
        if kind is torch.optim.LBFGS:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        return asked(parameters)

    noticed = [step() for _ in range(4)]

    assert noticed == [not options.get("fused"), True, True, True]


def test_nothing_is_no_change_also_where_a_peer_s_updates_are_written() -> None:
    half = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    parameters = quiet([nn.Parameter(torch.ones(2)), half])

    for _ in range(3):
        parameters.vector[:] += 0.5
        parameters.scatter()
        assert not asked(parameters)
    assert half.tolist() == [2.5] * 3


def test_gathering_twice_forgets_no_change() -> None:
    """As where `pull` comes between the optimizer's step and the session's."""
    target = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))]
    parameters = quiet(target)

    for tensor in target:
        with torch.no_grad():
            tensor.mul_(2)
        parameters.gather()
        parameters.vector[:] += 1
        parameters.scatter()
        assert asked(parameters)
        assert not asked(parameters)


def test_gradients_evaluations_and_grad_scalers_are_no_changes() -> None:
    module = nn.Linear(2, 1)
    parameters = quiet(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    scaler.scale(module(torch.full((4, 2), float("inf"))).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not asked(parameters)
    with torch.no_grad():
        module(torch.ones(4, 2))
    module.train(False)
    module.requires_grad_(False)
    module.state_dict()

    assert not asked(parameters)


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "loaded": lambda m: m.load_state_dict({k: 2 * v for k, v in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict(
        {k: 2 * v for k, v in m.state_dict().items()}, assign=True
    ),
    "other memory": lambda m: setattr(m.weight, "data", torch.ones(1, 2)),
    "another parameter": lambda m: setattr(m, "bias", nn.Parameter(torch.ones(1))),
    "converted": lambda m: m.to(torch.float64),
    "detached": lambda m: m.weight.detach().add_(1),
}


@pytest.mark.parametrize("make_change", CHANGES.values(), ids=CHANGES.keys())
def test_other_changes_are_noticed_at_once(make_change: Callable[[nn.Linear], object]) -> None:
    module = nn.Linear(2, 1)
    parameters = quiet(module)

    make_change(module)

    assert asked(parameters)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("was_idle", [True, False])
def test_what_torch_does_not_count_is_noticed_at_once_or_with_the_next_step(
    was_idle: bool, which: int
) -> None:
    """Whichever tensor it is, of whatever dtype; from then on nothing is taken for idle."""
    shapes = [(1,), (300, 40), (7,), (2, 3)]
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    target = [nn.Parameter(torch.ones(s, dtype=d)) for s, d in zip(shapes, dtypes, strict=True)]
    parameters = quiet(target) if was_idle else counted(target)

    noticed = []
    for _ in range(3):
        target[which].data.add_(1)
        noticed.append(asked(parameters))

    assert noticed == [was_idle, True, True]
    assert asked(parameters)


def test_tensors_of_inference_mode_count_as_changed() -> None:
    with torch.inference_mode():
        target = [torch.ones(3)]
    parameters = parameters_of(target)

    assert all(asked(parameters) for _ in range(3))  # type: ignore[arg-type]
