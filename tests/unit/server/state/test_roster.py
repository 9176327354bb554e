"""The roster: ranks, identities and phases."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import ConnectionConfig, Endpoint, Role
from gradwire_protocol.messages.admission import Peer
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_server.state.roster import TRANSITIONS, Phase, Roster, role_of
from support.members import member, roster_of


def test_the_rank_of_a_worker_that_left_is_used_again() -> None:
    leaving = member(1)
    roster = roster_of([member(0), leaving, member(2)])

    roster.remove(leaving)

    assert roster.free_rank(None) == 1
    assert [m.rank for m in roster] == [0, 2]
    assert roster.of(leaving.link.connection) is None
    assert roster.with_id(leaving.join.worker_id) is None


@given(wanted=st.lists(st.none() | st.integers(0, 12), max_size=12))
def test_a_worker_gets_the_rank_that_it_wants_or_else_the_lowest_free_one(
    wanted: list[int | None],
) -> None:
    roster = Roster()

    taken: set[int] = set()
    for each in wanted:
        rank = roster.free_rank(each)
        lowest = next(free for free in range(len(wanted)) if free not in taken)
        assert rank == (lowest if each is None or each in taken else each)
        roster.add_member(member(rank))
        taken.add(rank)

    assert [m.rank for m in roster] == sorted(taken)


def test_members_are_found_by_connection_and_by_identity() -> None:
    first, second = member(0), member(1)
    roster = roster_of([first, second])
    stranger = Endpoint(ConnectionConfig(), random_bytes=Random(9).randbytes).connect("x", 0.0)

    assert roster.of(second.link.connection) is second
    assert roster.of(stranger) is None
    assert roster.with_id(bytes([0]) * WORKER_ID_BYTES) is first
    assert roster.with_id(b"?" * WORKER_ID_BYTES) is None


def test_peers_are_told_by_rank_with_name_and_whether_they_have_finished() -> None:
    finished = member(2)
    finished.last_sequence = 0
    roster = roster_of([finished, member(0)])

    assert roster.peers() == (Peer(0, "worker0", False), Peer(2, "worker2", True))


@pytest.mark.parametrize("phase", Phase)
def test_a_member_moves_only_forward(phase: Phase) -> None:
    allowed = set()
    for target in Phase:
        moving = member(0, phase)
        try:
            moving.move_to(target)
        except AssertionError:
            assert moving.phase is phase
        else:
            allowed.add(target)

    assert allowed == TRANSITIONS[phase]
    assert all(target.value > phase.value for target in allowed)


def test_a_member_is_called_by_its_rank_and_its_own_name() -> None:
    assert member(4).name == "rank 4 (worker4)"


# Observers.


def test_an_observer_gets_the_highest_free_rank_whatever_it_wants() -> None:
    roster = roster_of([member(0), member(WORKERS_MAX - 1)])

    assert roster.free_rank(5, Role.OBSERVER) == WORKERS_MAX - 2


def test_observers_are_members_but_neither_workers_nor_peers() -> None:
    worker = member(0, key_name="gpu1")
    observer = member(WORKERS_MAX - 1, key_name="eyes", role=Role.OBSERVER)
    roster = roster_of([worker, observer])

    assert list(roster) == [worker, observer]
    assert roster.workers == [worker]
    assert roster.peers() == (Peer(0, "gpu1 at worker0", finished=False),)
    assert list(roster.connections) == [worker.link.connection, observer.link.connection]


def test_without_a_key_everyone_is_a_worker_and_has_the_name_that_it_gives_itself() -> None:
    worker = member(3)

    assert role_of(worker.link.connection) is Role.WORKER
    assert (worker.key_name, worker.shown_name, worker.name) == (
        None,
        "worker3",
        "rank 3 (worker3)",
    )
