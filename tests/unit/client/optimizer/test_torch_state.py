"""The state of torch's optimizers: whoever takes it over goes on as the other one would have."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwire.errors import UsageError
from gradwire.optimizer.torch_state import TorchOptimizer
from gradwire.target.torch_parameters import layout_of
from support.tiers import examples
from support.wording import naming

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
}
SHAPES = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=4)


class Side:
    """Tensors and what changes them."""

    def __init__(self, tensors: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.tensors = tensors
        self.optimizer = optimizer
        layout = layout_of([(str(i), tensor) for i, tensor in enumerate(tensors)])
        self.shared = TorchOptimizer(optimizer, tensors, layout)

    def step(self, seed: int, *, skipped: frozenset[int] = frozenset()) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i, tensor in enumerate(self.tensors):
            gradient = torch.randn(tensor.shape, generator=generator).to(tensor)
            tensor.grad = None if i in skipped else gradient
        self.optimizer.step()

    def take_over(self, other: "Side") -> None:
        """Take over what another side has."""
        self.shared.restore(other.shared.capture())

    @property
    def state(self) -> dict[Any, Any]:
        return {i: dict(self.optimizer.state.get(t, {})) for i, t in enumerate(self.tensors)}


def side(
    make: Make, shapes: Sequence[tuple[int, ...]] = ((2, 3), (3,)), dtype: Any = torch.float32
) -> Side:
    generator = torch.Generator().manual_seed(len(shapes))
    tensors = [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes
    ]
    return Side(tensors, make(tensors))


def check_same(one: Side, other: Side) -> None:
    for i, state in one.state.items():
        assert state.keys() == other.state[i].keys()
        for name, value in state.items():
            taken = other.state[i][name]
            assert type(taken) is type(value)
            if isinstance(value, torch.Tensor) and isinstance(taken, torch.Tensor):
                assert (taken.dtype, taken.shape) == (value.dtype, value.shape)
                assert torch.equal(taken, value)
            else:
                assert taken == value


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(shapes=SHAPES, steps=st.integers(1, 3))
@settings(
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.differing_executors],
)
def test_who_takes_over_a_state_goes_on_bit_by_bit_as_the_other(
    name: str, shapes: list[tuple[int, ...]], steps: int
) -> None:
    one, other = side(OPTIMIZERS[name], shapes), side(OPTIMIZERS[name], shapes)
    for seed in range(steps):
        one.step(seed)

    other.take_over(one)

    check_same(one, other)
    with torch.no_grad():
        for mine, theirs in zip(other.tensors, one.tensors, strict=True):
            mine.copy_(theirs)
    for each in (one, other):
        each.step(steps)
    assert all(map(torch.equal, one.tensors, other.tensors))


def test_a_parameter_without_a_state_stays_without() -> None:
    one, other = side(OPTIMIZERS["Adam"]), side(OPTIMIZERS["Adam"])
    one.step(1, skipped=frozenset({1}))

    other.take_over(one)

    check_same(one, other)
    assert other.state[1] == {}
    other.step(2)
    assert other.state[0]["step"].item() == 2
    assert other.state[1]["step"].item() == 1


def test_everyone_keeps_his_own_hyperparameters_and_group_order() -> None:
    one = side(OPTIMIZERS["Adam"])
    one.step(1)
    tensors: list[torch.Tensor] = [
        torch.nn.Parameter(torch.zeros(2, 3)),
        torch.nn.Parameter(torch.zeros(3)),
    ]
    groups: list[dict[str, Any]] = [{"params": [tensors[1]], "lr": 5.0}, {"params": [tensors[0]]}]
    other = Side(tensors, torch.optim.Adam(groups, lr=3.0))

    other.take_over(one)

    assert [group["lr"] for group in other.optimizer.param_groups] == [5.0, 3.0]
    check_same(one, other)


def test_sparse_gradients_have_a_state_too() -> None:
    def make(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(list(parameters))

    one, other = side(make, [(4, 2)]), side(make, [(4, 2)])
    indices, values = torch.tensor([[1]]), torch.ones(1, 2)
    one.tensors[0].grad = torch.sparse_coo_tensor(indices, values, (4, 2), check_invariants=True)
    one.optimizer.step()

    other.take_over(one)

    check_same(one, other)


class Odd(torch.optim.SGD):
    """Keeps what is no number."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["note"] = "text"
        return super().step(closure)


class Counting(torch.optim.SGD):
    """Keeps whole numbers, one for each element."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["times"] = torch.ones(parameter.shape, dtype=torch.int64)
        return super().step(closure)


class Failing(torch.optim.SGD):
    """Cannot be tried out."""

    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("only in real life")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda p: torch.optim.LBFGS(p), ("LBFGS",)),
        (lambda p: torch.optim.Adafactor(p), ("Adafactor", "row_var", "'0'")),
        (lambda p: torch.optim.SGD(p, lr=0.1), ("SGD", "no state")),
        (lambda p: Odd(p, lr=0.1), ("Odd", "note", "'0'")),
        (lambda p: Counting(p, lr=0.1), ("Counting", "times", "'0'")),
        (lambda p: Failing(p, lr=0.1), ("Failing", "only in real life")),
    ],
)
def test_what_cannot_be_averaged_is_named(make: Make, named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=naming("optimizer_state=True", *named)):
        side(make)


def test_what_an_optimizer_did_not_keep_at_first_is_named() -> None:
    one = side(OPTIMIZERS["Adam"])
    one.step(1)
    one.optimizer.state[one.tensors[1]]["later"] = torch.zeros(3)

    with pytest.raises(UsageError, match=naming("Adam", "later", "'1'")):
        one.shared.capture()


def test_an_optimizer_that_does_not_take_it_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = side(OPTIMIZERS["Adam"]), side(OPTIMIZERS["Adam"])
    one.step(1)

    def load(state: object) -> None:
        raise ValueError("not with me")

    monkeypatch.setattr(other.optimizer, "load_state_dict", load)

    with pytest.raises(UsageError, match=naming("Adam", "not with me")):
        other.take_over(one)
    assert not other.optimizer.state
