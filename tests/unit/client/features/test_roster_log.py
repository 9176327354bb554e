"""What a worker that trains says of others who come and go."""

import logging

import pytest

from gradwire.features.roster_log import RosterLog
from gradwire.worker.membership import Membership
from gradwire_protocol.messages.admission import Peer
from support.wording import naming

ONE, TWO = Peer(0, "gpu0/1", False), Peer(1, "gpu1/1", False)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "gradwire.session")
    return caplog


def lines_after(before: list[Peer], now: list[Peer], log: pytest.LogCaptureFixture) -> list[str]:
    membership = Membership(4)
    membership.on_roster(before)
    watch = RosterLog(membership)
    watch.after_step()
    membership.on_roster(now)
    watch.after_step()
    watch.after_step()
    return log.messages


def test_who_joins_is_named(log: pytest.LogCaptureFixture) -> None:
    [line] = lines_after([ONE], [ONE, TWO], log)

    assert line == naming("rank 1 (gpu1/1)", "joined", "2 workers")


def test_who_is_gone_is_named(log: pytest.LogCaptureFixture) -> None:
    [line] = lines_after([ONE, TWO], [ONE], log)

    assert line == naming("rank 1 (gpu1/1)", "gone", "1 worker")


def test_another_worker_on_the_same_rank_has_joined(log: pytest.LogCaptureFixture) -> None:
    [line] = lines_after([ONE, TWO], [ONE, Peer(1, "gpu7/9", False)], log)

    assert line == naming("rank 1 (gpu7/9)", "joined")


def test_who_finishes_and_leaves_is_not_worth_a_line(log: pytest.LogCaptureFixture) -> None:
    finished = Peer(1, "gpu1/1", True)

    assert lines_after([ONE, TWO], [ONE, finished], log) == []
    assert lines_after([ONE, finished], [ONE], log) == []
