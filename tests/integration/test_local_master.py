"""`gradwire.local_master`: a master of this process's own."""

import asyncio
import os
import signal
import socket
from contextlib import closing

import pytest

import gradwire
from gradwire import GradwireError, LocalMaster, RefusedError
from gradwire.cli.master_http import MasterHttp
from support.processes import Running, has_ended, python
from support.sessions import change, zeros
from support.waiting import wait_for_process
from support.wording import naming


def train_together(master: LocalMaster) -> None:
    """Let two workers of this process train, each with a key of its own."""
    targets = [zeros(), zeros()]
    sessions = [
        gradwire.join(
            target,
            master=master.address,
            key=master.key(name),
            threshold=0.5,
            start_timeout_seconds=0.0,
            staleness_bound="off",
        )
        for name, target in zip(("one", "two"), targets, strict=True)
    ]
    sessions[0].push(change(0.5, 0, 0, 0))
    wait_for_process(lambda: bool(sessions[1].pull()), "the update to come")
    assert targets[1].tolist() == [0.5, 0, 0, 0]
    for session in sessions:
        session.close()


def test_workers_of_this_process_train_and_the_master_ends_with_the_block() -> None:
    with gradwire.local_master() as master:
        train_together(master)
        pid = master.pid
        assert not has_ended(pid)

    assert has_ended(pid)
    master.close()  # it may be repeated


def test_it_may_be_started_inside_of_an_event_loop_as_in_a_notebook() -> None:
    async def cell() -> LocalMaster:
        return gradwire.local_master(http="127.0.0.1:0")

    with closing(asyncio.run(cell())) as master:
        assert master.http is not None
        train_together(master)
        assert MasterHttp(master.http, master.http_token).order("deny", "two") == naming("two")
        with pytest.raises(RefusedError, match="--http-operator-token-file"):
            MasterHttp(master.http).order("admit", "two")


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(GradwireError) as failed:
            gradwire.local_master(listen=address)

    assert str(failed.value) == naming(address)


def test_a_master_that_is_lost_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with gradwire.local_master() as master:
        os.kill(master.pid, signal.SIGKILL)
        wait_for_process(lambda: not master.is_running, "the master to end")
        wait_for_process(lambda: "was killed by SIGKILL" in caplog.text, "the log to say so")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_process_however_that_ends(number: int) -> None:
    program = (
        "import gradwire, time\n"
        "master = gradwire.local_master()\n"
        "print(master.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with Running(python(program)) as running:
        pid = int(running.read_line("the id of its master"))
        assert not has_ended(pid)

        running.send_signal(number)

        wait_for_process(lambda: has_ended(pid), "the master to end")
