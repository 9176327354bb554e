"""Two relays and eight workers as processes, of which some are killed all the time."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from support.health import metrics, run_status, status_of
from support.local_master import MasterProcess
from support.processes import Running
from support.shard_worker import USUAL
from support.waiting import wait_until

WORKERS = 8
SECONDS = 60.0
"""How long processes are killed."""

PROGRAM = Path(__file__).parents[1] / "support" / "shard_worker.py"


def versions_at(master: MasterProcess) -> int:
    """Return how many updates of workers a master has accepted."""
    versions = run_status(master.announcement["http"])["versions"]
    return sum(sequence for rank, sequence in versions.items() if int(rank) < WORKERS + 64)


def live_at(master: MasterProcess) -> int:
    """Return how many workers take part."""
    try:
        status = run_status(master.announcement["http"])
    except (OSError, KeyError, IndexError):
        return 0
    return sum(worker["phase"] == "live" for worker in status["workers"])


def finished(worker: Running) -> dict[str, Any]:
    """Return what a worker says in the end."""
    end: dict[str, Any] = json.loads(worker.read_line("a worker's end"))
    return end


def finish(workers: list[Running]) -> list[dict[str, Any]]:
    """Let workers finish; return what they say in the end."""
    for each in workers:
        assert each.stdin is not None
        each.stdin.write("finish\n")
        each.stdin.flush()
    return [finished(each) for each in workers]


@pytest.mark.deep("kills processes")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("topology", ["tree", "auto"])
def test_relays_and_workers_that_are_killed_cost_nobody_an_update(
    tmp_path: Path, topology: str
) -> None:
    random = Random(1)
    with ExitStack() as stack:
        idle = ("--idle-timeout-seconds", "3")
        log = stack.enter_context((tmp_path / "log").open("a"))
        master = stack.enter_context(MasterProcess(*idle, "--topology", topology, log=log))

        def relay(listen: str = "127.0.0.1:0") -> MasterProcess:
            of = master.address
            return stack.enter_context(MasterProcess(*idle, relay_of=of, listen=listen, log=log))

        relays = [relay(), relay()]
        places = [master.address] if topology == "auto" else [each.address for each in relays]

        def worker() -> Running:
            command = [sys.executable, str(PROGRAM), random.choice(places)]
            started = stack.enter_context(Running(command, stdin=subprocess.PIPE, stderr=log))
            json.loads(started.read_line("a worker's rank"))
            return started

        workers = [worker() for _ in range(WORKERS)]
        began, killed = monotonic(), 0
        while monotonic() < began + SECONDS:
            before = versions_at(master)
            wait_until(lambda: versions_at(master) > before + 100, "training to go on")  # noqa: B023
            number = random.randrange(2)
            relays[number].signal(signal.SIGKILL)
            relays[number].wait()
            gone = random.randrange(WORKERS)
            workers[gone].end()
            killed += 1
            relays[number] = relay(relays[number].address)
            workers[gone] = worker()
            wait_until(lambda: live_at(master) == WORKERS, "all to take part", seconds=60)
        behind = [each["relay"] for each in run_status(master.announcement["http"])["workers"]]

        ends = finish(workers)
        for daemon in (*relays, master):
            assert daemon.stop(signal.SIGTERM)[0] == 0

    assert killed >= 3
    assert any(behind)
    assert len({end["digest"] for end in ends}) == 1
    [total] = {end["sum"] for end in ends}
    assert total % 3.0 == 0.0
    assert total >= 3.0 * sum(end["steps"] for end in ends)


@pytest.mark.deep("kills processes")
@pytest.mark.timeout(120)
def test_workers_go_around_a_relay_that_is_gone_for_good(tmp_path: Path) -> None:
    """With the settings that everybody has."""
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("a"))
        master = stack.enter_context(MasterProcess("--topology", "tree", log=log))
        relay = stack.enter_context(MasterProcess(relay_of=master.address, log=log))
        workers = []
        for _ in range(2):
            command = [sys.executable, str(PROGRAM), relay.address, USUAL]
            workers.append(stack.enter_context(Running(command, stdin=subprocess.PIPE, stderr=log)))
            json.loads(workers[-1].read_line("a worker's rank"))
        wait_until(lambda: versions_at(master) > 100, "training to go on")
        status = run_status(master.announcement["http"])
        assert [each["relay"] for each in status["workers"]] == [1, 1]

        relay.signal(signal.SIGKILL)
        relay.wait()

        def are_around() -> bool:
            found = run_status(master.announcement["http"])["workers"]
            return [(each["phase"], each["relay"]) for each in found] == [("live", None)] * 2

        wait_until(are_around, "both to come to the master", seconds=15)
        before = versions_at(master)
        wait_until(lambda: versions_at(master) > before + 100, "training to go on")
        ends = finish(workers)
        assert master.stop(signal.SIGTERM)[0] == 0

    assert len({end["digest"] for end in ends}) == 1
    assert {end["sum"] for end in ends} == {3.0 * sum(end["steps"] for end in ends)}


@pytest.mark.deep("more ways for masters and workers to end")
@pytest.mark.timeout(120)
def test_workers_that_join_later_get_the_replica_of_their_relay(tmp_path: Path) -> None:
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("a"))
        master = stack.enter_context(MasterProcess("--topology", "tree", log=log))
        relay = MasterProcess("--replica", relay_of=master.address, log=log)
        stack.enter_context(relay)
        http = relay.announcement["http"]
        workers: list[Running] = []

        def join() -> None:
            command = [sys.executable, str(PROGRAM), relay.address, USUAL]
            workers.append(stack.enter_context(Running(command, stdin=subprocess.PIPE, stderr=log)))
            json.loads(workers[-1].read_line("a worker's rank"))
            before = versions_at(master)
            wait_until(lambda: versions_at(master) > before + 20, "training to go on")

        join()  # it has the first parameters, and the next one brings the replica
        join()
        wait_until(lambda: status_of(http)["keeps_replica"], "the relay's replica")
        join()
        join()
        assert metrics(http)["gradwire_relay_blocks_filled_total"] == 2
        ends = finish(workers)
        for daemon in (relay, master):
            assert daemon.stop(signal.SIGTERM)[0] == 0

    assert len({end["digest"] for end in ends}) == 1
    assert {end["sum"] for end in ends} == {3.0 * sum(end["steps"] for end in ends)}
