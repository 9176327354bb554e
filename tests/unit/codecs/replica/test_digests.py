"""Digests: what a replica has to be follows from its updates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import BlockDigests, Replica, Update, decode
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
