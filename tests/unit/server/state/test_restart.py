"""RunRecovery: whose replica a restarted master takes, and what it asks for of the log."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.messages.admission import LogName, Place, Resume, incarnation_of
from gradwire_protocol.messages.updates import Entries, Span
from gradwire_server.log.segments import Segment
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member
from support.members import member
from support.peer import LOG, resume_of

POSITIONS = st.integers(0, 12)


def back(*resumes: Resume) -> tuple[RunRecovery, list[Member]]:
    """Return a recovery for which workers are back with these."""
    recovery = RunRecovery(5.0, 5.0)
    members = [member(resume.rank) for resume in resumes]
    recovery.returned = dict(zip(members, resumes, strict=True))
    return recovery, members


def at(rank: int, log: LogName, position: int, kept_after: int | None = None) -> Resume:
    """Return what a worker says that has a log up to a position."""
    said = resume_of(rank, place=Place(log, position))
    kept_after = position if kept_after is None else min(kept_after, position)
    return Resume(
        rank, 0, said.place, {}, said.workers, kept_after=kept_after, kept_from=said.kept_from
    )


@st.composite
def logs(draw: st.DrawFn) -> list[LogName]:
    """Return one log, or one and its continuation, or two continuations that part."""
    first = LOG.continued(draw(POSITIONS), now=1.0)
    second = LOG.continued(draw(POSITIONS), now=2.0)
    return draw(st.sampled_from([[LOG], [LOG, first], [first, second], [LOG, first, second]]))


@st.composite
def returns(draw: st.DrawFn) -> list[Resume]:
    """Return what workers say that have these logs, each up to some position."""
    names = st.sampled_from(draw(logs()))
    said = draw(st.lists(st.tuples(names, POSITIONS, POSITIONS), min_size=1, max_size=6))
    return [at(rank, log, position, kept) for rank, (log, position, kept) in enumerate(said)]


@given(returns())
def test_the_heir_is_the_most_advanced_worker_of_the_last_log(said: list[Resume]) -> None:
    recovery, members = back(*said)

    heir = recovery.choose()

    assert heir in members
    assert heir is recovery.heir
    assert not recovery.gathering
    place = recovery.start
    assert place == said[members.index(heir)].place
    places = [resume.place for resume in said]
    followers = Counter(each.earliest_log for each in places)
    latest = incarnation_of(place.earliest_log)
    for each in places:
        assert incarnation_of(each.earliest_log) <= latest, "a later master has gone on"
        if incarnation_of(each.earliest_log) == latest:
            assert followers[each.earliest_log] <= followers[place.earliest_log], "more followed"
        if each.log.shares(place.log, each.position):
            assert each.position <= place.position


@given(returns())
def test_the_heir_is_asked_for_the_log_from_the_last_worker_that_shares_it(
    said: list[Resume],
) -> None:
    """As far as it keeps that."""
    recovery, members = back(*said)
    heir = recovery.choose()
    assert heir is not None
    kept_after = said[members.index(heir)].kept_after

    start = recovery.start
    shared = [each.place for each in said if start.log.shares(each.place.log, each.place.position)]
    last = min(place.position for place in shared)

    assert recovery.after == max(last, kept_after)
    assert recovery.after <= start.position
    assert recovery.has_log == (recovery.after == start.position)


@given(returns(), POSITIONS, st.booleans())
def test_the_masters_own_replica_is_taken_unless_a_worker_is_more_advanced(
    said: list[Resume], position: int, is_last: bool
) -> None:
    recovery, _ = back(*said)
    names = [LOG, *(resume.place.log for resume in said)]
    own = Place(max(names, key=lambda each: each.id) if is_last else LOG, position)
    recovery.own = own

    heir = recovery.choose()

    if heir is None:
        assert recovery.start == own
        places = [each.place for each in said]
        in_same = [each.position for each in places if each.earliest_log == own.earliest_log]
        assert all(position <= own.position for position in in_same)
        latest = incarnation_of(own.earliest_log)
        assert all(incarnation_of(each.earliest_log) <= latest for each in places)
    else:
        place = recovery.start
        its_log, own_log = place.earliest_log, own.earliest_log
        is_later = incarnation_of(its_log) > incarnation_of(own_log)
        is_further = its_log == own_log and place.position > own.position
        is_other = its_log != own_log and incarnation_of(its_log) == incarnation_of(own_log)
        assert is_later or is_further or is_other


def test_who_was_told_of_a_log_and_has_nothing_of_it_is_no_further_for_it() -> None:
    """A master went on from position 9, told one worker, and died before it sent what follows."""
    recovery, [told, further] = back(at(0, LOG.continued(9, now=1.0), 6), at(1, LOG, 9))

    assert recovery.choose() is further
    continued = recovery.start.log.continued(9, now=2.0)
    assert continued.shares(recovery.place(told).log, 6), "it is sent what it lacks"


def test_without_any_worker_the_masters_own_replica_is_taken() -> None:
    recovery, _ = back()
    recovery.own = Place(LOG, 3)

    assert recovery.choose() is None
    assert recovery.start == Place(LOG, 3)


def test_where_the_next_step_follows_from_the_last_results_all_that_is_kept_is_asked_for() -> None:
    recovery, [heir, _] = back(at(0, LOG, 9, kept_after=4), at(1, LOG, 9))
    recovery.needs_last_results = True

    assert recovery.choose() is heir
    assert recovery.after == 4


def test_the_log_is_here_when_the_last_of_it_is() -> None:
    recovery, _ = back(at(0, LOG, 9, kept_after=2), at(1, LOG, 6))
    recovery.choose()
    reached = [recovery.reached]
    for stop in (8, 9):
        entries = Entries(stop, b"", Span(recovery.reached, {7: stop}, 1, 1, {7: 0}))
        assert entries.span is not None
        assert not recovery.has_log
        recovery.segments.append(Segment.received(stop, entries.span, [b""], {}, 6, 0.0))
        reached.append(recovery.reached)

    assert reached == [6, 8, 9]
    assert recovery.has_log


def test_a_worker_of_whose_rank_another_one_has_more_is_displaced() -> None:
    """While it was away, an earlier master gave its rank to a new worker."""
    recovery, [displaced, other] = back(resume_of(0, 3), resume_of(1, 5, {0: 4, 1: 5}, kept_from=1))

    assert recovery.pop_displaced() == [displaced]
    assert list(recovery.returned) == [other]


def test_it_is_complete_when_all_workers_are_back_that_one_knows_of() -> None:
    knows_two, knows_one = resume_of(0, workers=2), resume_of(1, workers=1)
    cases: list[list[Resume]] = [[], [knows_two], [knows_one], [knows_one, knows_two]]

    assert [back(*case)[0].is_complete for case in cases] == [False, False, True, True]


def test_of_a_heir_that_is_lost_nothing_is_left() -> None:
    recovery, [heir, other] = back(at(0, LOG, 9, kept_after=2), at(1, LOG, 6, kept_after=5))
    assert recovery.choose() is heir
    recovery.contents = {0: 90, 1: 50}
    span = Span(6, {0: 90}, 1, 1, {0: 0})
    recovery.segments.append(Segment.received(7, span, [b""], {}, 6, 0.0))
    recovery.versions.update(span.after)

    recovery.retain([other])

    assert recovery.choose() is other
    assert not recovery.contents
    assert not recovery.segments
    assert not recovery.versions
    assert recovery.after == recovery.reached == 6
    recovery.restart(now=20.0)
    assert (recovery.gathering, recovery.heir, recovery.deadline) == (True, None, 25.0)
    assert not recovery.returned
