"""The state of torch's optimizers: whoever takes it over goes on as the other one would have."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwire.optimizer.state import PackedState, StateHeader, UnfitStateError, check_header
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
        self.layout = layout_of([(str(i), tensor) for i, tensor in enumerate(tensors)])
        self.shared = TorchOptimizer(optimizer, tensors, self.layout)

    def step(self, seed: int, *, skipped: frozenset[int] = frozenset()) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i, tensor in enumerate(self.tensors):
            gradient = torch.randn(tensor.shape, generator=generator).to(tensor)
            tensor.grad = None if i in skipped else gradient
        self.optimizer.step()

    def take_over(self, other: "Side") -> None:
        """Take over what another side has, over the wire."""
        packed = other.shared.capture()
        self.shared.prepare()
        header = StateHeader.parse(packed.part(0))
        check_header(header, self.layout)
        self.shared.check(header)
        arrived = PackedState(header, self.layout)
        for number in range(1, packed.parts):
            arrived.set_part(number, packed.part(number))
        self.shared.restore(arrived)

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

    was_cold = other.shared.is_cold

    other.take_over(one)

    check_same(one, other)
    assert (was_cold, other.shared.is_cold) == (True, False)
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
        (lambda p: torch.optim.LBFGS(p), ("LBFGS", "'0'", "number", "each element")),
        (lambda p: torch.optim.Adafactor(p), ("Adafactor", "row_var", "'0'")),
        (lambda p: torch.optim.SGD(p, lr=0.1), ("SGD", "no state")),
        (lambda p: Odd(p, lr=0.1), ("Odd", "note", "'0'")),
        (lambda p: Counting(p, lr=0.1), ("Counting", "times", "'0'")),
    ],
)
def test_a_state_that_cannot_be_given_away_is_named(make: Make, named: tuple[str, ...]) -> None:
    one = side(make)
    if isinstance(one.optimizer, torch.optim.LBFGS):
        one.optimizer.state[one.tensors[0]]["d"] = torch.zeros(9)
    else:
        one.step(1)

    with pytest.raises(UnfitStateError, match=naming(*named)):
        one.shared.capture()


@pytest.mark.parametrize(
    ("ours", "named"),
    [
        (OPTIMIZERS["SGD"], ("Adam", "SGD")),
        (
            lambda p: torch.optim.Adam(p, amsgrad=True),
            ("'0'", "exp_avg, exp_avg_sq, step", "exp_avg, exp_avg_sq, max_exp_avg_sq, step"),
        ),
        (
            lambda p: torch.optim.Adam(list(p)[:1]),
            ("'1'", "Adam"),
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_what_differs_is_said(
    ours: Make, named: tuple[str, ...]
) -> None:
    one, other = side(OPTIMIZERS["Adam"]), side(ours)
    one.step(1)

    with pytest.raises(UnfitStateError, match=naming(*named)):
        other.take_over(one)

    assert not other.optimizer.state


def test_a_number_in_the_place_of_a_slot_is_refused() -> None:
    other = side(OPTIMIZERS["Adam"])
    other.shared.prepare()
    header = StateHeader("Adam", ("exp_avg",), ("exp_avg_sq", "step"), b"\1\1", b"\3\3")

    with pytest.raises(UnfitStateError, match=naming("exp_avg_sq", "'0'", "size")):
        other.shared.check(header)


def test_a_value_that_is_none_leaves_the_optimizer_as_it_was() -> None:
    one, other = side(OPTIMIZERS["Adam"]), side(OPTIMIZERS["Adam"])
    one.step(1)
    one.optimizer.state[one.tensors[1]]["exp_avg"][2] = float("nan")

    with pytest.raises(UnfitStateError, match=naming("exp_avg", "'1'", "nan", 2)):
        other.take_over(one)

    assert not other.optimizer.state


def test_an_optimizer_that_does_not_take_it_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = side(OPTIMIZERS["Adam"]), side(OPTIMIZERS["Adam"])
    one.step(1)

    def load(state: object) -> None:
        raise ValueError("not with me")

    monkeypatch.setattr(other.optimizer, "load_state_dict", load)

    with pytest.raises(UnfitStateError, match=naming("Adam", "not with me")):
        other.take_over(one)
    assert not other.optimizer.state


def test_what_an_unknown_optimizer_keeps_is_not_guessed() -> None:
    other = side(lambda p: Failing(p, lr=0.1))

    with pytest.raises(UnfitStateError, match=naming("Failing", "only in real life")):
        other.shared.prepare()
