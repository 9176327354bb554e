"""What a replica has to be at any position of late."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Replica, Update, decode, encode
from gradwire_server.state.digests import HISTORY, Digests

ELEMENTS = 40


def updates_of(seed: int, n: int) -> list[Update]:
    """Return updates in the order in which they are accepted."""
    random = np.random.default_rng(seed)
    bodies: list[bytes] = []
    while len(bodies) < n:
        change = random.normal(0, 0.01, ELEMENTS).astype(np.float32)
        bodies += encode(change, Replica.zeros(ELEMENTS), threshold=0.01)
    return [decode(body, ELEMENTS) for body in bodies[:n]]


@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.integers(1, 3), max_size=12),
    first=st.integers(0, 5),
    history=st.sampled_from([2, 4, 64]),
)
def test_a_digest_is_that_of_a_replica_at_this_position_or_unknown(
    seed: int, steps: list[int], first: int, history: int
) -> None:
    """Between the ends of a sum there is no replica, and none before the latest ones."""
    replica = Replica(np.random.default_rng(seed).integers(-999, 999, ELEMENTS).astype(np.int32))
    position = first
    expected = {position: replica.digest()}
    with patch("gradwire_server.state.digests.HISTORY", history):
        digests = Digests(replica.values, position)
        for update, step in zip(updates_of(seed, len(steps)), steps, strict=True):
            position += step
            digests.add(update, position)
            replica.apply(update)
            expected[position] = replica.digest()

    known = dict(list(expected.items())[-history:])
    assert digests.blocks.whole == replica.digest()
    assert [digests.at(each) for each in range(position + 3)] == [
        known.get(each) for each in range(position + 3)
    ]


def test_the_latest_positions_are_known() -> None:
    [update] = updates_of(1, 1)
    digests = Digests(Replica.zeros(ELEMENTS).values, 0)

    for position in range(1, HISTORY + 10):
        digests.add(update, position)

    assert digests.at(9) is None
    assert digests.at(10) is not None
    assert digests.at(HISTORY + 10) is None
