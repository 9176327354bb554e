"""The state of an optimizer as it travels: what goes in comes out, and nothing else is let in."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.optimizer import state as optimizer_state
from gradwire.optimizer.state import (
    NUMBERS_MAX,
    PackedState,
    StateHeader,
    UnfitStateError,
    check_header,
    header_of,
)
from gradwire_protocol.messages.layout import TENSORS_MAX, Layout, Tensor
from gradwire_protocol.messages.states.records import STATE_PART_BYTES, STATE_SLOTS_MAX
from support.wording import naming

LAYOUT = Layout((Tensor("weight", (2, 3)), Tensor("frozen", (5,)), Tensor("scale", ())))
HEADER = StateHeader("Adam", ("exp_avg", "exp_avg_sq"), ("step",), b"\3\0\3", b"\1\0\1")

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=5)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def example() -> PackedState:
    packed = PackedState(HEADER, LAYOUT)
    for tensor in (0, 2):
        packed.slot(tensor, "exp_avg")[:] = tensor - 1
        packed.slot(tensor, "exp_avg_sq")[:] = tensor
        packed.set_number(tensor, "step", 7)
    return packed


def travelled(packed: PackedState, layout: Layout) -> PackedState:
    """Return what comes of a state on its way."""
    arrived = PackedState(StateHeader.parse(packed.part(0)), layout)
    assert arrived.parts == packed.parts
    for number in range(1, packed.parts):
        arrived.set_part(number, packed.part(number))
    return arrived


@given(data=st.data(), shapes=SHAPES, part_bytes=st.integers(1, 40))
def test_whatever_goes_in_comes_out(
    data: st.DataObject, shapes: list[tuple[int, ...]], part_bytes: int
) -> None:
    layout = Layout(
        (Tensor("first", (1,)), *(Tensor(f"t{i}", shape) for i, shape in enumerate(shapes)))
    )
    slots = data.draw(
        st.lists(
            st.frozensets(st.sampled_from("abc")),
            min_size=len(layout.tensors),
            max_size=len(layout.tensors),
        )
    )
    numbers = [frozenset({"step"}) if names else frozenset[str]() for names in slots]
    numbers[0] = frozenset({"step", "mu"})
    packed = PackedState(header_of("Adam", slots, numbers), layout)
    expected = []
    for i, tensor in enumerate(layout.tensors):
        values = {
            name: np.array(
                data.draw(st.lists(FLOATS, min_size=tensor.elements, max_size=tensor.elements)),
                np.float32,
            )
            for name in slots[i]
        }
        steps = {name: float(data.draw(st.integers(0, 2**53))) for name in numbers[i]}
        for name, array in values.items():
            packed.slot(i, name)[:] = array
        for name, number in steps.items():
            packed.set_number(i, name, number)
        expected.append((values, steps))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer_state, "STATE_PART_BYTES", part_bytes)
        arrived = travelled(packed, layout)

    arrived.check_values()
    for i, (values, steps) in enumerate(expected):
        state = arrived.tensor(i)
        assert state.numbers == steps
        assert state.slots.keys() == values.keys()
        for name, array in values.items():
            assert state.slots[name].tobytes() == array.tobytes()


def test_a_state_of_nothing_but_a_header_is_one_part() -> None:
    empty = PackedState(replace(HEADER, slot_masks=b"\0\0\0", number_masks=b"\0\0\0"), LAYOUT)

    assert (empty.parts, empty.nbytes) == (1, 0)
    empty.check_values()


def test_the_largest_header_fits_a_part() -> None:
    names = frozenset(f"a_name_of_what_an_optimizer_keeps_{i}" for i in range(8))
    header = header_of("X" * 64, [names] * TENSORS_MAX, [frozenset({"step"})] * TENSORS_MAX)

    assert len(header.pack()) <= min(StateHeader.BYTES_MAX, STATE_PART_BYTES)


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (replace(HEADER, slot_masks=b"\3\0"), ("2 tensors", 3)),
        (replace(HEADER, number_masks=b"\1\0\1\1"), ("4 tensors", 3)),
        (replace(HEADER, slot_masks=b"\3\0\4"), ("more than exp_avg, exp_avg_sq",)),
        (replace(HEADER, numbers=()), ("more than nothing",)),
        (replace(HEADER, numbers=("exp_avg",)), ("twice", "exp_avg, exp_avg_sq, exp_avg")),
    ],
)
def test_a_header_that_does_not_fit_the_layout_is_refused(
    header: StateHeader, named: tuple[object, ...]
) -> None:
    with pytest.raises(UnfitStateError, match=naming(*named)):
        check_header(header, LAYOUT)
    with pytest.raises(UnfitStateError, match=naming(*named)):
        PackedState(header, LAYOUT)


def test_a_part_that_is_too_short_or_too_long_is_refused() -> None:
    packed = example()
    body = packed.part(1)

    for wrong in (body[:-1], body + b"\0", b""):
        with pytest.raises(UnfitStateError, match=naming("part 1", len(wrong), len(body))):
            packed.set_part(1, wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("exp_avg", value) for value in (np.nan, np.inf, -np.inf)),
        *(("exp_avg_sq", value) for value in (np.nan, np.inf, -np.inf, -1e-30)),
    ],
)
def test_what_is_not_finite_is_refused_and_named(name: str, value: float) -> None:
    """And so is a sum of squares below zero."""
    packed = example()
    packed.slot(0, name)[4] = value

    with pytest.raises(UnfitStateError, match=naming(name, "weight", f"{value:g}", 4)):
        packed.check_values()


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_number_that_is_none_is_refused(value: float) -> None:
    packed = example()
    packed.set_number(2, "step", value)

    with pytest.raises(UnfitStateError, match=naming("step", "scale", f"{value:g}", 0)):
        packed.check_values()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: header_of("SGD", [frozenset()], [frozenset()]), ("SGD", "no state")),
        (
            lambda: header_of(
                "Big", [frozenset(map(str, range(STATE_SLOTS_MAX + 1)))], [frozenset()]
            ),
            ("Big", 9, 0, 8),
        ),
        (
            lambda: header_of("Big", [frozenset()], [frozenset(map(str, range(NUMBERS_MAX + 1)))]),
            ("Big", 0, 9, 8),
        ),
        (
            lambda: header_of("X" * 65, [frozenset({"a"})], [frozenset()]),
            ("optimizer", 64),
        ),
        (lambda: header_of("Odd", [frozenset({"a\n"})], [frozenset()]), ("slots", "a\\n")),
    ],
)
def test_what_cannot_travel_is_said(
    make: Callable[[], StateHeader], named: tuple[object, ...]
) -> None:
    with pytest.raises(UnfitStateError, match=naming(*named)):
        make()
