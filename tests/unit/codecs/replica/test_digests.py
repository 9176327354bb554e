"""Digests: what a replica has to be follows from its updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import BlockDigests, Replica, Update, decode, digest_of, unflip
from gradwire_codecs.arrays import Int32Array
from support.updates import encoded_updates

ELEMENTS = 500


def values_of(seed: int) -> Int32Array:
    return np.random.default_rng(seed).integers(-(2**26), 2**26, ELEMENTS).astype(np.int32)


def updates_of(seed: int, n: int) -> list[Update]:
    return [decode(body, ELEMENTS) for body in encoded_updates(seed, ELEMENTS, n)]


@given(seed=st.integers(0, 2**32), block=st.integers(1, 2 * ELEMENTS))
def test_digests_follow_updates_and_these_can_be_taken_back(seed: int, block: int) -> None:
    replica = Replica(values_of(seed))
    before = BlockDigests.of(replica.values, block)
    following = BlockDigests.of(replica.values, block)

    updates = updates_of(seed, 4)
    for update in updates:
        replica.apply(update)
        following.add(update)

    assert following.values.tolist() == BlockDigests.of(replica.values, block).values.tolist()
    assert following.whole == replica.digest()
    for update in reversed(updates):
        following.subtract(update)
    assert following.values.tolist() == before.values.tolist()


@given(
    seed=st.integers(0, 2**32),
    at=st.integers(0, ELEMENTS - 1),
    bit=st.integers(0, 31),
    later=st.integers(0, 3),
    start=st.integers(0, 2**31 - 1 - ELEMENTS),
)
def test_one_bit_that_was_flipped_is_turned_back_whatever_was_added_since(
    seed: int, at: int, bit: int, later: int, start: int
) -> None:
    right, damaged = Replica(values_of(seed)), Replica(values_of(seed))
    damaged.values.view(np.uint32)[at] ^= np.uint32(1 << bit)
    for update in updates_of(seed, later):
        right.apply(update)
        damaged.apply(update)

    found = unflip(damaged.values, start, digest_of(right.values, start))

    assert found == start + at
    assert damaged.values.tolist() == right.values.tolist()


@pytest.mark.parametrize("places", [[], [3, 3], [3, 400]], ids=["no bit", "one element", "two"])
def test_more_or_less_than_one_bit_is_left_as_it_is(places: list[int]) -> None:
    values = values_of(1)
    digest = digest_of(values)
    for bit, place in enumerate(places):
        values.view(np.uint32)[place] ^= np.uint32(5 << 2 * bit)
    before = values.copy()

    assert unflip(values, 0, digest) is None
    assert values.tolist() == before.tolist()


def test_what_would_leave_the_range_is_no_bit_that_was_flipped() -> None:
    values = np.array([2**31 - 1], np.int32)
    weight = digest_of(np.array([1], np.int32))

    assert unflip(values, 0, (digest_of(values) + 2**31 * weight) % 2**64) is None
    assert values.tolist() == [2**31 - 1]
