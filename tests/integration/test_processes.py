"""A master in several processes: to workers and operators it is one."""

import os
import signal
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from support.driven_worker import (
    DrivenWorker,
    answers_of,
    ask_all,
    check_applied,
    finish,
    start,
    tell_all,
)
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.processes import has_ended
from support.tiers import variants
from support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux can steer packets"),
]

QUICK: dict[str, Any] = {"idle_timeout_seconds": 3.0}
"""So that the dead are noticed while a test can wait for it."""

WORKERS_MAX = 24
"""Where each goes is drawn: that none of so many goes to one of three has a chance of 1 in 10^4."""


def join(stack: ExitStack, master: MasterProcess, n: int, **settings: Any) -> list[DrivenWorker]:
    return start(stack, master.address, n, **QUICK, **settings)


def connections(master: MasterProcess) -> list[int]:
    """Return how many connections each process has."""
    return [p["connections"] for p in run_status(master.announcement["http"])["processes"]]


def pids(master: MasterProcess) -> list[int]:
    return [p["pid"] for p in run_status(master.announcement["http"])["processes"]]


def join_everywhere(
    stack: ExitStack, master: MasterProcess, at_least: int = 6
) -> list[DrivenWorker]:
    """Let workers join until each process has at least one."""
    workers = join(stack, master, at_least)
    while 0 in connections(master):
        assert len(workers) < WORKERS_MAX, connections(master)
        workers += join(stack, master, 1)
    return workers


@pytest.mark.parametrize(("processes", "loop"), variants(("2", "uvloop"), ("3", "asyncio")))
def test_every_update_is_applied_by_everyone_else_once(processes: str, loop: str) -> None:
    with ExitStack() as stack:
        master = stack.enter_context(
            MasterProcess("--processes", processes, "--loop", loop, "--idle-timeout-seconds", "10")
        )
        workers = join_everywhere(stack, master) + join(stack, master, 1, transport="tcp")
        spread = connections(master)
        for worker in workers:
            worker.ask("wait", workers=len(workers))
        ask_all(workers, "step", times=40)

        sent = check_applied(finish(workers))

        counted = metrics(master.announcement["http"])
        assert counted["gradwire_updates_accepted_total"] == sent
        assert counted["gradwire_updates_relayed_total"] == (len(workers) - 1) * sent
        assert counted["gradwire_connections_opened_total"] == len(workers) == sum(spread)
        assert len(spread) == int(processes)
        dropped = sum(v for n, v in counted.items() if n.startswith("gradwire_datagrams_dropped"))
        received = (
            counted["gradwire_datagrams_received_total"]
            + counted["gradwire_tcp_packets_received_total"]
        )
        assert received == dropped + (
            counted["gradwire_packets_accepted_total"]
            + counted["gradwire_handshakes_answered_total"]
        )


@pytest.mark.deep("more of masters of several processes")
def test_a_process_that_is_killed_costs_its_workers_and_nothing_else() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(
            MasterProcess("--processes", "2", "--idle-timeout-seconds", "3")
        )
        workers = join_everywhere(stack, master)
        http = master.announcement["http"]
        lost = connections(master)[1]
        before = pids(master)
        tell_all(workers, "step", times=100)

        os.kill(before[1], signal.SIGKILL)
        left = len(workers) - lost
        wait_until(lambda: len(run_status(http)["workers"]) == left, "the loss to be noticed")
        wait_until(lambda: len(pids(master)) == 2, "its successor")
        answers_of(workers)
        wait_until(lambda: metrics(http)["gradwire_rejoins_total"] == lost, "them to come back")
        alive = [*workers, *join(stack, master, 2)]

        ask_all(alive, "step", times=20)
        assert len(finish(alive)) == len(workers) + 2
        counted = metrics(http)
        assert counted["gradwire_processes_lost_total"] == 1
        assert counted['gradwire_leaves_total{reason="disconnected"}'] == lost
        _, _, log = master.stop(signal.SIGTERM)
        assert f"process 1 of the master, pid {before[1]}, was ended by SIGKILL" in log
        assert "is gone: the process of the master that it was connected to has ended" in log


@pytest.mark.deep("more of masters of several processes")
def test_workers_of_all_processes_hear_why_the_master_stops() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--processes", "3"))
        workers = join_everywhere(stack, master)
        processes = pids(master)

        status, _, log = master.stop(signal.SIGTERM)

        assert status == 0, log
        for worker in workers:
            assert "was stopped by SIGTERM" in worker.step_until_it_fails()["message"]
        assert not any(os.path.exists(f"/proc/{pid}") for pid in processes)  # noqa: PTH110


@pytest.mark.deep("more of masters of several processes")
def test_signals_to_all_processes_at_once_stop_the_master_as_one_to_the_first_does() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--processes", "2"))
        workers = join_everywhere(stack, master, 4)

        for pid in pids(master)[1:]:
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)
        for worker in workers:
            worker.ask("step", times=3)
        status, _, log = master.stop(signal.SIGINT)

        assert status == 0
        assert "Traceback" not in log
        assert "was ended by" not in log


def test_a_master_that_is_killed_leaves_no_process_behind() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--processes", "3"))
        processes = pids(master)

        os.kill(processes[0], signal.SIGKILL)

        wait_until(lambda: all(map(has_ended, processes[1:])), "the end of all")
