"""Bounded staleness in sessions, against a real master on loopback."""

import logging
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident
from typing import Any

import pytest

import gradwire.replica.outbox
from gradwire import Session
from gradwire.metrics import SessionCollector
from gradwire_codecs.arrays import Float32Array
from support.local_master import LocalMaster
from support.sessions import change, finish, join, membership_of, participant_of, zeros
from support.waiting import PROCESS, SOON, wait_until

BOUND = 2


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers wait for a late one for as long as a test may take."""
    monkeypatch.setattr("gradwire.session.assembly.STALENESS_TIMEOUT_SECONDS", PROCESS)


def bounded(master: LocalMaster, target: Float32Array | None = None, **options: object) -> Session:
    """Join with a bound."""
    return join(master, target, **({"staleness_bound": BOUND} | options))


def two(master: LocalMaster, **options: Any) -> tuple[Session, Session]:
    """Let two join, and wait until each has heard of the other."""
    one, other = (bounded(master, **options) for _ in range(2))
    wait_until(lambda: other.rank in heard(one), "one to hear of the other")
    one.step()
    other_hears = lambda: heard(other).get(one.rank) == clock(one)  # noqa: E731
    wait_until(other_hears, "the other to hear of the one")
    other.step()
    wait_until(lambda: heard(one)[other.rank] == clock(other), "one to hear of it again")
    return one, other


def heard(session: Session) -> dict[int, int]:
    return dict(membership_of(session).clocks.latest)


def clock(session: Session) -> int:
    """Return how many steps a session counts as its own."""
    return participant_of(session).outbox.clock


def steps(session: Session, n: int) -> None:
    for _ in range(n):
        session.step()


def until_it_waits(pool: ThreadPoolExecutor, session: Session) -> Future[None]:
    """Let a session make steps until it waits for another one; return its last step."""
    while True:
        waited = session.stats.steps_waited
        step = pool.submit(session.step)
        wait_until(
            lambda: step.done() or session.stats.steps_waited > waited,  # noqa: B023
            "a step",
        )
        if session.stats.steps_waited > waited and not step.done():
            return step
        step.result()


def test_a_worker_waits_for_a_slower_one_and_applies_what_comes(
    master: LocalMaster, pool: ThreadPoolExecutor
) -> None:
    mine, theirs = zeros(), zeros()
    one, other = bounded(master, mine), bounded(master, theirs)
    wait_until(lambda: other.rank in heard(one), "one to hear of the other")

    waiting = until_it_waits(pool, one)
    lead = clock(one) - clock(other)
    theirs[0] += 0.5
    other.step()  # it changes something, too, and that is what the waiting is for
    waiting.result(SOON)

    assert lead == BOUND + 1
    assert mine[0] == 0.5
    assert one.stats.steps_waited == 1
    assert one.stats.wait_seconds > 0
    metrics = {metric.name: metric for metric in SessionCollector(one).collect()}
    assert metrics["gradwire_session_steps_waited"].samples[0].value == 1


def test_a_step_that_changes_nothing_counts(master: LocalMaster) -> None:
    one, other = two(master)

    steps(other, BOUND)

    assert other.stats.elements_sent == 0
    assert other.stats.updates_sent == other.stats.steps + 1  # one said that it begins
    wait_until(lambda: heard(one)[other.rank] == clock(other), "all of them")
    assert one.digest() == other.digest()
    finish(one, other)


def test_the_end_of_the_master_ends_a_wait(
    pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with LocalMaster() as master:
        one, _ = two(master)
        waiting = until_it_waits(pool, one)

        master.stop("maintenance")
        waiting.result(SOON)


def test_a_signal_handler_may_close_a_session_that_waits(
    master: LocalMaster, pool: ThreadPoolExecutor
) -> None:
    one, _ = two(master)
    closed = []
    main = get_ident()

    def close(*_: object) -> None:
        one.close()
        closed.append(True)

    def interrupt() -> None:
        wait_until(lambda: one.stats.steps_waited > 0, "it to wait")
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, close)
    try:
        pool.submit(interrupt)
        while not closed:
            one.step()
    except gradwire.UsageError as error:
        assert "this session is over" in str(error)  # noqa: PT017  # it came between two steps
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert one.stats.steps_waited == 1


def test_what_is_sent_in_a_wait_is_not_taken_for_training(
    master: LocalMaster, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next step would multiply it, where no learning rate does."""
    one, other = two(master, scale=0.5)
    monkeypatch.setattr(gradwire.replica.outbox, "OUTBOX_UPDATES_MAX", -1)
    one.push(change(1.0, 0, 0, 0))  # it stays in the residual, half of it
    waiting = until_it_waits(pool, one)
    monkeypatch.undo()
    membership_of(one).notify()
    wait_until(lambda: heard(other)[one.rank] == clock(one), "it to tell its steps")
    other.step()
    waiting.result(SOON)

    one.push()

    assert one.stats.elements_sent == 1
    assert one.state_dict()["residual"].tolist() == [0, 0, 0, 0]
