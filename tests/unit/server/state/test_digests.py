"""What a replica has to be at any version vector of late."""

from collections.abc import Mapping
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Replica, Update, decode, encode
from gradwire_server.state.digests import HISTORY, Digests

ELEMENTS = 40
RANKS = 3


def updates_of(seed: int, n: int) -> list[tuple[int, Update]]:
    """Return updates of some ranks, in the order they are accepted."""
    random = np.random.default_rng(seed)
    bodies: list[bytes] = []
    while len(bodies) < n:
        change = random.normal(0, 0.01, ELEMENTS).astype(np.float32)
        bodies += encode(change, Replica.zeros(ELEMENTS), threshold=0.01)
    return [(int(random.integers(RANKS)), decode(body, ELEMENTS)) for body in bodies[:n]]


def replica_with(
    base: Replica,
    updates: list[tuple[int, Update]],
    first: Mapping[int, int],
    to: Mapping[int, int],
) -> Replica:
    """Apply the updates up to some versions."""
    replica, at = Replica(base.values.copy()), dict(first)
    for rank, update in updates:
        at[rank] = at.get(rank, 0) + 1
        if at[rank] <= to.get(rank, 0):
            replica.apply(update)
    return replica


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 12),
    first=st.dictionaries(st.integers(0, RANKS - 1), st.integers(0, 5)),
    asked=st.dictionaries(st.integers(0, RANKS), st.integers(0, 12)),
    history=st.sampled_from([2, 4, 64]),
)
def test_a_digest_is_that_of_a_replica_with_these_updates_or_unknown(
    seed: int, n: int, first: dict[int, int], asked: dict[int, int], history: int
) -> None:
    base = Replica(np.random.default_rng(seed).integers(-999, 999, ELEMENTS).astype(np.int32))
    updates, versions = updates_of(seed, n), dict(first)
    with patch("gradwire_server.state.digests.HISTORY", history):
        digests = Digests(base.values, first)
        for rank, update in updates:
            versions[rank] = versions.get(rank, 0) + 1
            digests.add(rank, versions[rank], update)

        at = digests.at(asked)
        now = digests.at(versions)

    known = all(
        max(first.get(rank, 0), versions.get(rank, 0) - history + 1)
        <= asked.get(rank, 0)
        <= versions.get(rank, 0)
        for rank in range(RANKS + 1)
    )
    assert at == (replica_with(base, updates, first, asked).digest() if known else None)
    assert now == digests.blocks.whole == replica_with(base, updates, first, versions).digest()


def test_of_every_rank_the_last_updates_are_known() -> None:
    base = Replica.zeros(ELEMENTS)
    [(_, update)] = updates_of(1, 1)
    digests = Digests(base.values, {})

    for sequence in range(1, HISTORY + 10):
        digests.add(0, sequence, update)

    assert digests.at({0: 9}) is None
    assert digests.at({0: 10}) is not None
    assert digests.at({0: HISTORY + 10}) is None
