"""The beginning of a run: which workers are waited for, how long, and what the log says of it."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.replica.waits import Procedure, Wait
from gradwire.session.start import RANKS_NAMED_MAX, Meeting
from gradwire_protocol.messages.admission import Peer
from support.participants import Rig
from support.wording import naming

TIMEOUT = 30.0


def roster(*ranks: int) -> list[Peer]:
    return [Peer(rank, f"gpu{rank}/1", False) for rank in ranks]


def rig_of(*ranks: int, workers: int | None, begun: bool = False) -> Rig:
    """Return a worker of rank 1, and who else is there, in a run that has begun or not."""
    rig = Rig(workers=workers, start_timeout_seconds=TIMEOUT)
    if not begun:
        rig.participant.shared.versions = {}
    rig.membership.on_roster(roster(*ranks))
    return rig


def meeting_of(rig: Rig) -> Procedure[None]:
    return Meeting(rig.participant).wait()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gradwire.join")
    return caplog


@given(st.sets(st.integers(0, 5)), st.integers(1, 6))
def test_who_is_there_waits_for_the_others_and_for_nobody_else(
    others: set[int], workers: int
) -> None:
    there = others | {1}
    rig = rig_of(*there, workers=workers)

    waits = list(meeting_of(rig)) if len(there) >= workers else None
    wait = None if waits is not None else rig.wait_of(meeting_of(rig))

    assert waits in (None, [])
    if wait is not None:
        assert wait.deadline == rig.now + TIMEOUT
        assert not wait.condition()
        rig.membership.on_roster(roster(*range(workers)))
        assert wait.condition()


def waits_for(rig: Rig) -> Wait:
    return rig.wait_of(meeting_of(rig))


def test_what_is_waited_for_is_said_with_the_ranks_that_are_missing() -> None:
    assert waits_for(rig_of(1, 3, workers=4)).purpose() == naming("2 of 4 workers", "rank 0, 2")


def test_many_missing_ranks_and_unusual_ones_are_only_counted() -> None:
    many = RANKS_NAMED_MAX + 2
    assert waits_for(rig_of(1, workers=many)).purpose() == f"{many - 1} of {many} workers"
    assert waits_for(rig_of(1, 7, workers=3)).purpose() == "1 of 3 workers"


def test_nobody_waits_for_ever_and_who_is_missing_is_named(log: pytest.LogCaptureFixture) -> None:
    rig = rig_of(0, 1, workers=3)
    procedure = meeting_of(rig)
    wait = next(procedure)

    rig.now = wait.deadline
    rig.play(procedure)

    [record] = log.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == naming(
        "2 of 3 workers", "rank 2", "30 s", "start_timeout_seconds"
    )


def test_where_nobody_said_how_many_come_a_worker_begins_alone_and_says_how_to_wait(
    log: pytest.LogCaptureFixture,
) -> None:
    rig = rig_of(1, workers=None)
    rig.play(meeting_of(rig))

    [line] = log.messages
    assert line == naming("alone", "workers=N", "GRADWIRE_WORKERS")


@pytest.mark.parametrize("workers", [None, 2])
def test_a_run_that_has_begun_is_joined_at_once(
    log: pytest.LogCaptureFixture, workers: int | None
) -> None:
    rig = rig_of(0, 1, workers=workers, begun=True)
    rig.play(meeting_of(rig))

    [line] = log.messages
    assert line == naming("goes on", "2 workers", "12 updates")


@pytest.mark.parametrize("begun", [False, True])
def test_who_waits_begins_as_soon_as_another_has_trained(begun: bool) -> None:
    rig = rig_of(0, 1, workers=3, begun=begun)
    procedure = meeting_of(rig)
    wait = next(procedure)

    rig.hear(1.0)

    assert wait.condition()
    rig.play(procedure)


def test_a_master_that_ends_ends_the_wait() -> None:
    rig = rig_of(0, 1, workers=3)
    wait = waits_for(rig)

    rig.membership.on_stopping("maintenance")

    assert wait.condition()
