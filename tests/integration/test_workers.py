"""Real processes on real sockets: joining late, being killed in mid-update, a master that stops."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli.app import main
from support.driven_worker import (
    DrivenWorker,
    ask_all,
    finish,
    start,
)
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.tiers import variants
from support.waiting import PROCESS, SILENCE, wait_for_process

QUICK: dict[str, Any] = {"idle_timeout_seconds": SILENCE}
"""So that the dead are noticed while a test can wait for it."""
QUICK_MASTER = ("--idle-timeout-seconds", str(SILENCE))


def join(stack: ExitStack, master: MasterProcess, n: int, **settings: Any) -> list[DrivenWorker]:
    return start(stack, master.address, n, **QUICK | settings)


def test_a_fifth_worker_joins_in_mid_run_and_one_is_killed_and_the_rest_end_equal() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess(*QUICK_MASTER))
        first, second, third, victim = join(stack, master, 4)
        for answer in ask_all([first, second, third, victim], "step", times=50):
            assert answer["updates_sent"] > 0

        victim.tell("flood")  # so that it dies in the middle of an update
        first.tell("step", times=100)
        [fifth] = join(stack, master, 1)
        assert fifth.ask("wait", workers=5)["world_size"] == 5
        victim.kill()
        first.answer()
        http = master.announcement["http"]
        wait_for_process(lambda: len(run_status(http)["workers"]) == 4, "the death to be noticed")
        rest = [first, second, third, fifth]
        ask_all(rest, "step", times=50)
        for worker in rest:  # the master knows, and says so to each
            wait_for_process(lambda w=worker: w.ask("step", times=1)["workers"] == 4, "the roster")  # type: ignore[misc]

        finish(rest)

        counted = metrics(http)
        assert counted['gradwire_leaves_total{reason="idle"}'] >= 1
        assert counted["gradwire_runs_finished_total"] == 1


@pytest.mark.deep("more ways for masters and workers to end")
def test_a_worker_that_stood_still_for_longer_than_the_idle_timeout_comes_back() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess(*QUICK_MASTER))
        http = master.announcement["http"]
        stopped, *others = workers = join(stack, master, 3)
        for worker in workers:
            worker.ask("step", times=20)
        stopped.process.send_signal(signal.SIGSTOP)
        wait_for_process(lambda: len(run_status(http)["workers"]) == 2, "its silence to be noticed")
        for worker in others:
            worker.ask("step", times=20)

        stopped.process.send_signal(signal.SIGCONT)
        wait_for_process(lambda: metrics(http)["gradwire_rejoins_total"] >= 1, "it to come back")
        for worker in workers:
            worker.ask("step", times=20)
        ends = finish(workers)

        sent = [end["updates_sent"] for end in ends]
        assert [end["updates_applied"] for end in ends[1:]] == [sum(sent) - n for n in sent[1:]]
        assert metrics(http)["gradwire_updates_accepted_total"] == sum(sent)


@pytest.mark.parametrize("sealed", variants(True, False))
def test_a_master_that_is_killed_and_started_anew_gets_its_run_back(
    sealed: bool, tmp_path: Path
) -> None:
    key = tmp_path / "run.key"
    assert main(["keygen", str(key)]) == 0
    settings: dict[str, Any] = {}
    options = [*QUICK_MASTER]
    if sealed:
        options += ["--key-file", str(key)]
        settings["key_file"] = str(key)  # from which each process makes its own
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess(*options))
        workers = join(stack, master, 3, **settings)
        ask_all(workers, "step", times=30)

        master.stop(signal.SIGKILL)
        options += ["--recovery-seconds", str(PROCESS)]
        anew = stack.enter_context(MasterProcess(*options, listen=master.address))
        assert all(end["updates_sent"] for end in finish(workers))
        counted = metrics(anew.announcement["http"])
        assert counted["gradwire_rejoins_total"] >= 3
        assert counted["gradwire_runs_finished_total"] == 1
