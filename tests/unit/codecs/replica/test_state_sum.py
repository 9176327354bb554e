"""Sums of parameters and state: means, the largest number of steps, and what bits leave out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update
from gradwire_codecs.format.update import DenseUpdate
from gradwire_codecs.replica.round_sum import RoundSum
from gradwire_codecs.replica.state_sum import StateSum, ranges_with_state

PARAMETERS = [(0, 5), (5, 8)]
TENSORS = 3
RANGES = ranges_with_state(PARAMETERS, 2, [TENSORS, TENSORS])
STEPS_AT = RANGES[-1][0]
ELEMENTS = RANGES[-1][1]
CHANGES = st.lists(st.integers(-1000, 1000), min_size=ELEMENTS, max_size=ELEMENTS)


def new() -> StateSum:
    return StateSum(RANGES, parameters=len(PARAMETERS), numbers=2, largest=1)


def sparse(change: list[int], start: int = 0) -> Update:
    values = np.array(change, np.int32)
    index = np.flatnonzero(values)
    return Update(start, start + len(values), 1, (index + start).astype(np.uint32), values[index])


def dense(change: list[int], start: int) -> DenseUpdate:
    return DenseUpdate(start, start + len(change), 3, np.array(change, np.int8))


def test_ranges_are_those_of_parameters_for_each_slot_and_one_for_each_number() -> None:
    assert RANGES == [
        (0, 5), (5, 8), (8, 13), (13, 16), (16, 21), (21, 24), (24, 27), (27, 30)
    ]  # fmt: skip
    assert ranges_with_state(PARAMETERS, 0, []) == PARAMETERS


@given(changes=st.lists(CHANGES, min_size=1, max_size=5))
def test_numbers_of_steps_are_the_largest_and_all_else_is_the_mean(
    changes: list[list[int]],
) -> None:
    total, plain = new(), RoundSum(STEPS_AT, RANGES[:-1])
    for change in changes:
        total.add(sparse(change))
        plain.add(sparse(change[:STEPS_AT]))

    means = total.take_mean(len(changes), None)

    result = np.zeros(ELEMENTS, np.int64)
    for mean in means:
        result[mean.index] += mean.change
    steps = np.array(changes)[:, STEPS_AT:].max(0)
    assert result[STEPS_AT:].tolist() == np.maximum(steps, 0).tolist()
    rest = np.array(changes).sum(0)[:STEPS_AT] - len(changes) * result[:STEPS_AT]
    assert total._total[:STEPS_AT].tolist() == rest.tolist()
    assert not total._total[STEPS_AT:].any()
    numbers = slice(RANGES[-2][0], STEPS_AT)
    assert np.abs(rest[numbers]).max() <= len(changes) / 2


@pytest.mark.parametrize("magnitude_max", [7, 127])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_slot_has_8_bits_whatever_parameters_have(magnitude_max: int, *, is_last: bool) -> None:
    total = new()
    total.add(sparse([1000, 3, 0, -500, 40, 6, 7, 8] * 3 + [5, 6, 7] * 2))

    means = {mean.start: mean for mean in total.take_mean(1, magnitude_max, is_last=is_last)}

    assert [means[at].multiple for at in (0, 8)] == [
        1 if is_last else -(-1000 // magnitude_max),
        8,
    ]
    assert means[24].change.tolist() == means[27].change.tolist() == [5, 6, 7]


def test_a_dense_update_of_steps_and_of_what_is_before_them_is_taken_apart() -> None:
    total = new()
    total.add(dense([1, 2, 3, 4, 5, 6], STEPS_AT - 3))
    total.add(dense([1, 1, 1, 9, 1, 1], STEPS_AT - 3))
    total.add(sparse([-1] * ELEMENTS))

    assert total._total[STEPS_AT - 3 :].tolist() == [5, 8, 11, 27, 15, 18]


def test_without_numbers_of_steps_nothing_is_the_largest() -> None:
    total = StateSum(RANGES, parameters=len(PARAMETERS), numbers=2, largest=None)
    for _ in range(2):
        total.add(sparse([4] * ELEMENTS))
    assert (total._total == 8).all()
