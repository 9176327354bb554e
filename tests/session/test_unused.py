"""A script that joins and shares nothing is told so, however it ends."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from gradwire import Session
from gradwire_protocol.crypto.keys import Role
from support.local_master import LocalMaster
from support.sessions import RUN_KEY, join, zeros
from support.wording import naming

SAID = ("made no step", "session.step()")


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "made no step" in message]


@pytest.mark.parametrize("end", [Session.finish, Session.close])
def test_an_end_without_a_step_warns(
    master: LocalMaster, caplog: pytest.LogCaptureFixture, end: Callable[[Session], None]
) -> None:
    mine = zeros()
    session = join(master, mine)
    mine += 1.0

    end(session)

    [line] = warned(caplog)
    assert line == naming("rank 0", *SAID)


def test_a_script_that_ends_without_a_step_and_without_an_end_is_warned(
    master: LocalMaster,
) -> None:
    session = join(master)

    assert session._loss_warning() == naming("rank 0", *SAID)
    session.close()
    assert session._loss_warning() is None


@pytest.mark.parametrize(("end", "is_warned"), [("", True), ("raise LookupError", False)])
def test_a_script_that_crashes_before_its_first_step_has_another_reason(
    master: LocalMaster, end: str, *, is_warned: bool
) -> None:
    script = (
        "import numpy, gradwire\n"
        "parameters = numpy.zeros(4, numpy.float32)\n"
        f"session = gradwire.join(parameters, master='{master.address}', log_level='warning')\n"
        f"{end}\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert ("made no step" in done.stderr) is is_warned


def leaves(session: Session) -> None:
    """As a driver that founds a run for others."""
    session.leave()


def steps(session: Session) -> None:
    session.step()


def pushes(session: Session) -> None:
    session.push(zeros())


def pulls(session: Session) -> None:
    session.pull()


def has_no_item(session: Session) -> None:
    """As a worker that comes when others have done everything."""
    session.items("work", 1)


@pytest.mark.parametrize("use", [leaves, steps, pushes, pulls, has_no_item])
def test_a_script_that_uses_its_session_is_not_warned(
    master: LocalMaster, caplog: pytest.LogCaptureFixture, use: Callable[[Session], None]
) -> None:
    with join(master) as session:
        use(session)

    assert warned(caplog) == []


def test_a_block_that_fails_has_another_reason(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        with join(master):
            raise LookupError

    with pytest.raises(LookupError):
        fail()

    assert warned(caplog) == []


def test_an_observer_may_look_on(
    keyed_master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = join(keyed_master, key=RUN_KEY.worker_key("one"))
    join(keyed_master, key=RUN_KEY.worker_key("eyes", Role.OBSERVER)).close()

    assert warned(caplog) == []
    worker.step()
    worker.finish()
