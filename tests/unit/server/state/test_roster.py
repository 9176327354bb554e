"""The roster: ranks, identities and phases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Role
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_server.state.roster import TRANSITIONS, Phase, Roster
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


# Observers.


def test_an_observer_gets_the_highest_free_rank_whatever_it_wants() -> None:
    roster = roster_of([member(0), member(WORKERS_MAX - 1)])

    assert roster.free_rank(5, Role.OBSERVER) == WORKERS_MAX - 2
