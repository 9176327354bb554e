"""The replica: commuting sums, a digest, and the range of the quantum."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import (
    CodecError,
    NonFiniteError,
    OutOfRangeError,
    Replica,
    Update,
    quantum_exponent_for,
)
from support.updates import encoded_updates


@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_replicas_are_identical_in_whatever_order_updates_come(seed: int, order: Random) -> None:
    encoded = encoded_updates(seed, 500, 6)
    shuffled = encoded.copy()
    order.shuffle(shuffled)
    one, other = Replica.zeros(500), Replica.zeros(500)

    for update in encoded:
        one.apply(update)
    for update in shuffled:
        other.apply(update)

    assert one.values.tobytes() == other.values.tobytes()
    assert one.digest() == other.digest()


@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50),
    change=st.integers(1, 2**31 - 1),
    data=st.data(),
)
def test_a_single_changed_element_changes_the_digest(
    values: list[int], change: int, data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, len(values) - 1))
    one = Replica(np.array(values, np.int32))
    other = Replica(one.values.copy())
    other.values[i] = np.int64(values[i] + change).astype(np.int32)

    assert one.digest() != other.digest()


def test_the_digest_is_the_documented_sum() -> None:
    values = np.array([0, 1, -1, 2**31 - 1, -(2**31)], np.int32)
    total = len(values)
    for i, value in enumerate(values):
        x = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        total += ((x ^ x >> 31) | 1) * int(value)

    assert Replica(values).digest() == total % 2**64


@given(
    parameters=st.lists(st.floats(-7.875, 7.875, width=32), min_size=1, max_size=50),
    exponent=st.integers(-24, -18),
)
def test_parameters_come_back_within_half_a_quantum(parameters: list[float], exponent: int) -> None:
    given_parameters = np.array(parameters, np.float32)
    replica = Replica.from_parameters(given_parameters, exponent)
    back = np.empty_like(given_parameters)

    replica.write_parameters(back)

    # Half a quantum from rounding to the lattice, half a unit of float32 from reading it.
    tolerance = 2.0 ** (exponent - 1) + np.spacing(np.abs(given_parameters)) / 2
    assert (np.abs(back.astype(np.float64) - given_parameters) <= tolerance).all()


def test_parameters_without_headroom_are_refused_and_the_next_quantum_is_offered() -> None:
    parameters = np.array([0.0, -8.0, 1.0], np.float32)

    with pytest.raises(OutOfRangeError, match=r"element 1 is -8; .* below 8") as refused:
        Replica.from_parameters(parameters)

    assert (refused.value.index, refused.value.limit) == (1, 8.0)
    assert quantum_exponent_for([8.0]) == -23
    assert Replica.from_parameters(parameters, -23).values[1] == -8 * 2**23


NO_VALUES: list[Any] = [np.zeros((2, 2), np.int32), np.zeros(4, np.int64), np.zeros(0, np.int32)]


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        *(
            (partial(Replica.from_parameters, np.array([0, 0, value], np.float32)),
             NonFiniteError, "element 2 is")
            for value in (np.nan, np.inf, -np.inf)
        ),
        (partial(Replica.from_parameters, np.empty(0, np.float32)), CodecError, "empty"),
        *(
            (partial(Replica, values), CodecError, "a flat int32 array")
            for values in NO_VALUES
        ),
        (partial(Replica.zeros, 4, -41), CodecError, "exponent has to be -40 to 0"),
        (partial(Replica.zeros, 4, 1), CodecError, "exponent has to be -40 to 0"),
    ],
)  # fmt: skip
def test_what_can_be_no_replica_is_refused(
    make: Callable[[], object], error: type[CodecError], says: str
) -> None:
    with pytest.raises(error, match=says):
        make()


# Range.


@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    multiple=st.integers(1, 2**24),
    data=st.data(),
)
def test_the_first_element_that_leaves_the_range_is_found_before_anything_is_added(
    values: list[int], multiple: int, data: st.DataObject
) -> None:
    limit = (2**31 - 1) // multiple
    counts = data.draw(
        st.lists(st.integers(-limit, limit), min_size=len(values), max_size=len(values))
    )
    replica = Replica(np.array(values, np.int32))
    index = np.arange(len(values), dtype=np.uint32)
    update = Update(0, len(values), multiple, index, np.array(counts, np.int32))

    outside = replica.first_outside(update)

    sums = [value + count * multiple for value, count in zip(values, counts, strict=True)]
    assert outside == next((i for i, s in enumerate(sums) if abs(s) > 2**31 - 1), None)
    assert replica.values.tolist() == values
