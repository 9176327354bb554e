"""The network thread: what is handed to it, what it fails of, and its end."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from random import Random

import pytest

from gradwire.errors import ConnectionLostError
from gradwire.settings.settings import Settings
from gradwire.threads.network import NetworkThread
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_udp import resolve_all
from support.local_master import LocalMaster
from support.loops import LOOPS_BY_NAME
from support.peer import LAYOUT, join_request
from support.waiting import wait_until
from support.wording import naming


class Connected:
    """A network thread that has dialled a master, and what it was made of."""

    def __init__(self, master: LocalMaster) -> None:
        settings = Settings(master=master.address)
        self.membership = Membership(LAYOUT.elements)
        self.worker = Worker(
            join_request(), self.membership, master.address, random=Random(1).random
        )
        self.network = NetworkThread(settings, self.worker, self.membership.on_closed)
        self.network.start(resolve_all(master.address))


@pytest.fixture(params=["asyncio", "uvloop"])
def connected(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connected]:
    monkeypatch.setattr("gradwire.threads.network.new_event_loop", LOOPS_BY_NAME[request.param])
    with LocalMaster() as master:
        connected = Connected(master)
        yield connected
        connected.network.call(connected.worker.abort, "the test is over")
        connected.network.stop()


def test_it_dials_the_master_and_its_worker_asks_to_join(connected: Connected) -> None:
    wait_until(lambda: connected.membership.welcome is not None, "the welcome")

    assert connected.worker.rank == 0
    assert connected.network.traffic.packets_sent > 0
    assert connected.network.traffic.packets_received > 0


def test_calls_are_made_on_its_thread_in_their_order_and_with_the_time(
    connected: Connected,
) -> None:
    calls: list[tuple[int, str, float]] = []

    def note(i: int, *, now: float) -> None:
        calls.append((i, threading.current_thread().name, now))

    for i in range(3):
        connected.network.call(note, i)
    wait_until(lambda: len(calls) == 3, "three calls")

    assert [call[:2] for call in calls] == [(i, "gradwire-network") for i in range(3)]
    times = [now for *_, now in calls]
    assert times == sorted(times)


def test_a_call_that_fails_closes_the_membership_and_is_logged(
    connected: Connected, caplog: pytest.LogCaptureFixture
) -> None:
    failure = LookupError("nobody has thought of this")

    def fail(*, now: float) -> None:
        raise failure

    connected.network.call(fail)
    wait_until(lambda: connected.membership.closed, "the end")

    assert_failed(connected.membership, failure)
    [record] = [r for r in caplog.records if r.name == "gradwire.network"]
    assert (record.levelno, record.message) == (logging.ERROR, naming("network thread"))
    assert record.exc_info is not None
    assert record.exc_info[1] is failure


def test_a_callback_of_the_loop_that_fails_closes_the_membership(connected: Connected) -> None:
    failure = LookupError("nobody has thought of this")

    def fail() -> None:
        raise failure

    def fail_soon(*, now: float) -> None:
        asyncio.get_running_loop().call_soon(fail)

    connected.network.call(fail_soon)
    wait_until(lambda: connected.membership.closed, "the end")

    assert_failed(connected.membership, failure)


def assert_failed(membership: Membership, failure: Exception) -> None:
    assert isinstance(membership.error, ConnectionLostError)
    assert membership.error.__cause__ is failure
    assert str(membership.error) == naming("network thread", repr(failure), "report")


def test_a_thread_that_is_stopped_does_what_it_was_handed_and_takes_no_more_calls(
    connected: Connected,
) -> None:
    calls: list[float] = []

    def note(*, now: float) -> None:
        calls.append(now)

    for _ in range(100):
        connected.network.call(note)
    connected.network.call(connected.worker.abort, "enough")
    connected.network.stop()
    connected.network.call(note)
    connected.network.stop()

    assert "gradwire-network" not in [thread.name for thread in threading.enumerate()]
    assert len(calls) == 100
    assert connected.membership.closed
