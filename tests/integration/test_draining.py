"""Real processes that are told to end by SIGTERM: what they have sent arrives first."""

import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradwire
from support.driven_worker import (
    ELEMENTS,
    DrivenWorker,
    answers_of,
    ask_all,
    check_applied,
    start,
    tell_all,
)
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.processes import stands_still
from support.waiting import SILENCE, wait_for_process

LARGE = 1_000_000
DENSE: dict[str, Any] = {"threshold": 1e-3}
"""With steps of this size a third of all elements, some 300 KB: far more than is sent before the
first acknowledgement."""

NEVER = ("--checkpoint-seconds", "100000")


def sigterm_is_caught(pid: int) -> bool:
    """Return whether a process does anything about SIGTERM but to die of it."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    [caught] = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_what_workers_have_sent_a_master_that_is_stopped_is_with_everyone_and_on_the_disk(
    tmp_path: Path,
) -> None:
    options = ("--checkpoint", str(tmp_path), *NEVER)
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess(*options))
        workers = start(stack, master.address, 3)
        tell_all(workers, "step", times=1_000_000)
        http = master.announcement["http"]
        wait_for_process(lambda: sum(run_status(http)["versions"].values()) > 100, "updates")

        status, _, err = master.stop(signal.SIGTERM)
        answers = answers_of(workers)
        ends = ask_all(workers, "look")

    assert status == 0
    assert "stopping without waiting" not in err
    for answer in answers:
        assert answer["error"] == "ConnectionLostError"
        assert "is over: the master was stopped by SIGTERM; the model keeps" in answer["message"]
    sent = check_applied(ends)
    loaded = gradwire.load_checkpoint(tmp_path, np.zeros(ELEMENTS, np.float32))
    assert loaded.updates == sent
    assert {end["digest"] for end in ends} == {loaded.digest}


@pytest.mark.deep("more ways for masters and workers to end")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_worker_has_pushed_before_a_signal_is_with_everyone(number: signal.Signals) -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess())
        ended, other = start(stack, master.address, 2, LARGE, **DENSE)
        before = ended.ask("step", times=1)["updates_sent"]
        master.signal(signal.SIGSTOP)
        sent = ended.ask("step", times=5)["updates_sent"]

        ended.process.send_signal(number)
        wait_for_process(lambda: not sigterm_is_caught(ended.process.pid), "it to leave")
        if number == signal.SIGHUP:  # comes twice, to a process and to its group
            ended.process.send_signal(number)
        master.signal(signal.SIGCONT)

        assert ended.process.wait() == -number
        end = other.ask("finish")
        counted = metrics(master.announcement["http"])
        assert sent > before
        assert end["updates_applied"] == sent
        assert counted['gradwire_leaves_total{reason="left"}'] >= 1
        assert counted['gradwire_leaves_total{reason="disconnected"}'] == 0


@pytest.mark.deep("more ways for masters and workers to end")
def test_a_second_sigterm_ends_a_worker_at_once() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess())
        [worker] = start(stack, master.address, 1)
        master.signal(signal.SIGSTOP)
        worker.process.send_signal(signal.SIGTERM)
        wait_for_process(lambda: not sigterm_is_caught(worker.process.pid), "it to leave")
        assert worker.process.poll() is None

        worker.process.send_signal(signal.SIGTERM)

        assert worker.process.wait() == -signal.SIGTERM


@pytest.mark.deep("more ways for masters and workers to end")
def test_a_second_signal_ends_a_master_at_once() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--drain-seconds", "100000"))
        still, other = start(stack, master.address, 2)
        wait_for_process(partial(has_live, master, 2), "both to be live")
        halt(still)
        master.signal(signal.SIGTERM)
        wait_for_process(lambda: has_heard_of_it(other), "a word")

        status, _, err = master.stop(signal.SIGTERM)

    assert status == 0
    assert "stopping without waiting" not in err


def halt(worker: DrivenWorker) -> None:
    """Stop a worker, and wait until it is: it would hear what it must not."""
    worker.process.send_signal(signal.SIGSTOP)
    wait_for_process(partial(stands_still, worker.process.pid), "the worker to stand still")


def has_live(master: MasterProcess, n: int) -> bool:
    """Return whether the master waits for so many workers when it drains."""
    workers = run_status(master.announcement["http"])["workers"]
    return [worker["phase"] for worker in workers] == ["live"] * n


def has_heard_of_it(worker: DrivenWorker) -> bool:
    """Return whether a worker was told that its master drains, or was let go by it."""
    return "message" in worker.ask("step", times=1) or is_draining(worker)


def is_draining(worker: DrivenWorker) -> bool:
    """Return whether a worker was told to send nothing more."""
    before, after = worker.ask("look"), worker.ask("step", times=3)
    # By now the master may have let it go.
    return "message" in after or bool(after["updates_sent"] == before["updates_sent"])


@pytest.mark.deep("more ways for masters and workers to end")
def test_a_worker_that_dies_while_the_others_wait_for_it_to_finish_is_not_waited_for() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--idle-timeout-seconds", str(SILENCE)))
        dead, *living = start(stack, master.address, 4)
        ask_all([dead, *living], "step", times=30)
        tell_all(living, "finish")
        http = master.announcement["http"]
        wait_for_process(lambda: metrics(http)["gradwire_updates_unstable"] == 0, "all to be there")

        dead.kill()
        ends = answers_of(living)

        assert len({end["digest"] for end in ends}) == 1
        assert len({end["parameters"] for end in ends}) == 1
        assert metrics(http)["gradwire_runs_finished_total"] == 1
