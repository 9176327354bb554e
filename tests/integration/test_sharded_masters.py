"""Two masters and four workers as processes: each master is killed once, and nothing is lost."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradwire
from support.health import run_status
from support.local_master import MasterProcess
from support.processes import Running
from support.shard_worker import ELEMENTS
from support.waiting import wait_until

WORKERS = 4
PROGRAM = Path(__file__).parents[1] / "support" / "shard_worker.py"


def live_at(master: MasterProcess) -> int:
    """Return how many workers take part in what a master has."""
    try:
        status = run_status(master.announcement["http"])
    except OSError:
        return 0
    return sum(worker["phase"] == "live" for worker in status["workers"])


def updates_at(master: MasterProcess) -> int:
    """Return how many updates a master has accepted, before it was started included."""
    return sum(run_status(master.announcement["http"])["versions"].values())


def goes_on(master: MasterProcess, what: str) -> None:
    """Wait until a master has accepted some more updates."""
    before = updates_at(master)
    wait_until(lambda: updates_at(master) > before + 50, what)


def all_take_part(masters: Sequence[MasterProcess]) -> None:
    wait_until(lambda: [live_at(each) for each in masters] == [WORKERS] * 2, "all to take part")


@pytest.mark.deep("kills processes")
@pytest.mark.timeout(180)
def test_masters_that_are_killed_one_after_the_other_lose_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def start(number: int, listen: str = "127.0.0.1:0") -> MasterProcess:
            log = stack.enter_context((tmp_path / f"master-{number}.log").open("a"))
            folder = str(tmp_path / str(number))
            options = ("--idle-timeout-seconds", "3", "--checkpoint", folder)
            return stack.enter_context(MasterProcess(*options, listen=listen, log=log))

        masters = [start(number) for number in range(2)]
        names = f"{masters[0].address}*2,{masters[1].address}"
        workers = [
            stack.enter_context(
                Running([sys.executable, str(PROGRAM), names], stdin=subprocess.PIPE)
            )
            for _ in range(WORKERS)
        ]
        ranks = [json.loads(worker.read_line("a worker's rank"))["rank"] for worker in workers]
        assert sorted(ranks) == list(range(WORKERS))
        all_take_part(masters)

        for number in (1, 0):
            killed, other = masters[number], masters[1 - number]
            killed.signal(signal.SIGKILL)
            killed.wait()
            goes_on(other, "the other part to go on")
            masters[number] = start(number, listen=killed.address)
            all_take_part(masters)
            goes_on(masters[number], "this part to go on")

        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("finish\n")
            worker.stdin.flush()
        ends: list[dict[str, Any]] = [json.loads(w.read_line("a worker's end")) for w in workers]
        for master in masters:
            assert master.stop(signal.SIGTERM)[0] == 0

    assert len({end["digest"] for end in ends}) == 1
    assert {end["sum"] for end in ends} == {3.0 * sum(end["steps"] for end in ends)}
    assert all(end["reconnections"] == 2 for end in ends)
    model = np.zeros(ELEMENTS, np.float32)
    loaded = gradwire.load_checkpoint([tmp_path / "0", tmp_path / "1"], model)
    assert (loaded.digest, loaded.finished) == (ends[0]["digest"], True)
    assert model.sum(dtype=np.float64) == ends[0]["sum"]
    larger = np.zeros(ELEMENTS + 1, np.float32)
    with pytest.raises(gradwire.UsageError, match=r"5000 parameters together, .* model has 5001"):
        gradwire.load_checkpoint([tmp_path / "0", tmp_path / "1"], larger)
    with pytest.raises(gradwire.UsageError, match=r"array\[3328:5000\]"):
        gradwire.load_checkpoint([tmp_path / "1", tmp_path / "0"], model)
    with pytest.raises(gradwire.UsageError, match="array"):
        gradwire.load_checkpoint(tmp_path / "0", model)
