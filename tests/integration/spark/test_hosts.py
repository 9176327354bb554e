"""Executors that come, go and stall in the middle of a training, on a standalone cluster."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Running, with_tests
from support.spark_standalone import Standalone, standalone
from support.waiting import wait_until

SECONDS_MAX = 300


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path / "cluster") as started:
        started.start_host("127.0.0.2")
        yield started


def driver(hosts: Standalone, folder: Path, batch: str, *settings: str) -> Running:
    """Return a driver that trains with two workers, if there are as many."""
    module = ["-m", "support.spark_hosts_driver"]
    command = [sys.executable, *module, str(folder), hosts.address, batch, *settings]
    return Running(command, env=with_tests())


def told_by(running: Running) -> dict[str, Any]:
    """Wait for the end of a driver, all of whose items were trained on; return what it says."""
    out, _ = running.communicate(timeout=SECONDS_MAX)
    assert running.returncode == 0
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    ledger = found["ledger"]
    assert ledger["done"] + ledger["finished"] == ledger["items"] * ledger["epochs"]
    return found


def test_a_host_that_comes_takes_part_and_one_that_is_taken_away_is_not_missed(
    hosts: Standalone, tmp_path: Path
) -> None:
    with driver(hosts, tmp_path, "slow") as running:
        wait_until(lambda: (tmp_path / "trains").exists(), "training to begin", seconds=150)
        hosts.start_host("127.0.0.3")
        log = tmp_path / "cluster" / "127.0.0.3.log"
        wait_until(lambda: "Asked to launch executor" in log.read_text(), "it", seconds=60)
        hosts.end_host("127.0.0.2")

        found = told_by(running)

    assert found["ledger"]["returned"] >= 1
    assert sum(found["items"].values()) > 0


def test_a_task_that_stalls_is_speculated_upon_and_its_item_is_trained_on_elsewhere(
    hosts: Standalone, tmp_path: Path
) -> None:
    hosts.start_host("127.0.0.3")
    speculation = [
        "spark__speculation=true",
        "spark__speculation__interval=200ms",
        "spark__speculation__multiplier=1.1",
        "spark__speculation__minTaskRuntime=1s",
    ]
    with driver(hosts, tmp_path, "stalling", *speculation) as running:
        found = told_by(running)

    assert (tmp_path / "stalls").exists()
    assert found["ledger"]["returned"] + len(found["items"]) >= 2
