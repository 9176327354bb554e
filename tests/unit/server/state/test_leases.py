"""Leases: who is expected back, under which rank, for how long."""

import pytest

from gradwire_protocol import Identity, Role
from gradwire_server.state.leases import Leases

GPU1 = Identity("gpu1", Role.WORKER, b"1" * 16)
GPU2 = Identity("gpu2", Role.WORKER, b"2" * 16)


def leases_with(*entries: tuple[bytes, int, Identity | None], most: int = 10) -> Leases:
    """Return places kept since second 100, for 60 seconds."""
    leases = Leases(60.0, most)
    for worker_id, rank, identity in entries:
        leases.reserve(worker_id, rank, identity, 100.0)
    return leases


def test_a_place_is_kept_for_its_time_and_no_longer() -> None:
    leases = leases_with((b"a", 3, None))

    assert leases.ranks(159.9) == {3}
    found = leases.find(b"a", None, 159.9)
    assert found is not None
    assert found.rank == 3
    assert leases.find(b"a", None, 160.0) is None
    assert leases.ranks(160.0) == frozenset()


@pytest.mark.parametrize("identity", [None, GPU2])
def test_nobody_else_can_claim_it(identity: Identity | None) -> None:
    leases = leases_with((b"a", 3, GPU1))

    assert leases.find(b"a", identity, 101.0) is None
    assert leases.find(b"b", GPU1, 101.0) is None
    assert leases.find(b"a", GPU1, 101.0) is not None


def test_who_comes_with_the_same_key_takes_the_place() -> None:
    leases = leases_with((b"a", 3, GPU1), (b"b", 4, GPU2), (b"c", 5, None))

    leases.end_of(GPU1)
    leases.end_of(None)

    assert leases.ranks(101.0) == {4, 5}


def test_the_oldest_place_gives_way() -> None:
    leases = leases_with((b"a", 1, None), (b"b", 2, None), (b"c", 3, None), most=2)

    assert (len(leases), leases.ranks(101.0)) == (2, frozenset({2, 3}))
