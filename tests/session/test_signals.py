"""The end of a process: what is done about SIGTERM and SIGHUP, where nobody else does anything."""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import gradwire
from gradwire import Session
from gradwire.replica.waits import Wait
from gradwire.threads.signals import SIGNALS
from gradwire.threads.waits import Waits
from gradwire.worker.inbox import Arrivals
from support.local_master import LocalMaster
from support.sessions import join, loss_of, membership_of, participant_of
from support.wording import naming


@pytest.fixture(autouse=True)
def nothing_done_about_them() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_caught_while_a_session_is_open(
    master: LocalMaster, number: signal.Signals
) -> None:
    one, other = join(master), join(master)
    caught = signal.getsignal(number)
    one.close()
    caught_still = signal.getsignal(number)
    other.close()

    assert callable(caught)
    assert caught_still is caught
    assert signal.getsignal(number) is signal.SIG_DFL


def test_it_is_caught_no_more_when_the_master_has_ended_the_session() -> None:
    with LocalMaster() as master:
        session = join(master)
        master.stop("maintenance")
        loss_of(session)

        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("own", [signal.SIG_IGN, lambda number, frame: None])
def test_what_a_script_does_about_it_stays(master: LocalMaster, own: "signal._HANDLER") -> None:
    signal.signal(signal.SIGTERM, own)
    before = join(master)
    kept = signal.getsignal(signal.SIGTERM)
    before.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    later = join(master)
    signal.signal(signal.SIGTERM, own)
    later.close()

    assert kept is own
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_session_of_another_thread_is_no_reason_to_catch_it(master: LocalMaster) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(join, master).result()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def assert_is_over(session: Session, reason: str) -> None:
    with pytest.raises(gradwire.UsageError, match=naming(reason)):
        session.step()


def test_a_handler_in_the_middle_of_a_step_leaves_when_that_is_over(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = join(master)
    signal.signal(signal.SIGTERM, lambda number, frame: session.close("interrupted"))
    inbox = membership_of(session).inbox
    take = inbox.take_all

    def interrupted() -> Arrivals:
        monkeypatch.setattr(inbox, "take_all", take)
        with participant_of(session).shared.changing:
            signal.raise_signal(signal.SIGTERM)
        assert not membership_of(session).closed
        return take()

    monkeypatch.setattr(inbox, "take_all", interrupted)

    session.step()

    assert_is_over(session, "interrupted")
    master.wait_for_workers(0)


def test_a_handler_leaves_when_the_replica_is_lent_and_not_while_that_takes_a_lock(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = join(master)
    signal.signal(signal.SIGTERM, lambda number, frame: session.close("interrupted"))
    applying = participant_of(session).applying
    lend, lent = applying.lend, list[bool]()

    def interrupted(*, applies: bool) -> None:
        lent.append(applies)
        if len(lent) == 1:
            with participant_of(session).shared.changing:
                signal.raise_signal(signal.SIGTERM)
            assert not membership_of(session).closed
        lend(applies=applies)

    monkeypatch.setattr(applying, "lend", interrupted)

    with session.paused():
        assert_is_over(session, "interrupted")

    assert lent == [False, True]
    master.wait_for_workers(0)


def test_a_handler_that_closes_while_the_end_is_waited_for_is_named_by_it(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = join(master), join(master)
    signal.signal(signal.SIGTERM, lambda number, frame: one.close("interrupted"))
    wait = Waits.wait

    def interrupted(self: Waits, awaited: Wait) -> bool:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGTERM)
        return wait(self, awaited)

    monkeypatch.setattr(Waits, "wait", interrupted)

    with pytest.raises(gradwire.UsageError, match=naming("interrupted")):
        one.finish()

    other.close()
    master.wait_for_workers(0)


def test_a_handler_that_raises_in_the_middle_of_a_step_ends_that_and_the_session_goes_on(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = join(master)

    def raises(number: int, frame: object) -> None:
        sys.exit(7)

    signal.signal(signal.SIGTERM, raises)
    with monkeypatch.context() as patch:
        patch.setattr(
            membership_of(session).inbox,
            "take_all",
            lambda: signal.raise_signal(signal.SIGTERM),
        )
        with pytest.raises(SystemExit):
            session.step()

    session.step()
    session.close()
    master.wait_for_workers(0)
