"""Executors that come, go and stall in the middle of a training, on a standalone cluster."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import spark_models
from support.processes import Running, has_ended, with_tests
from support.spark_standalone import Standalone, standalone
from support.waiting import JOB, wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hosts")
    (made / "waiting").mkdir()
    return made


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[Standalone]:
    """Return a cluster whose driver trains with two workers, if there are as many."""
    with standalone(folder / "cluster") as started:
        started.start_host("127.0.0.2")
        yield started


@pytest.fixture(scope="module")
def driver(hosts: Standalone, folder: Path) -> Iterator[Running]:
    command = [sys.executable, "-m", "support.spark_hosts_driver", str(folder), hosts.address]
    with Running(command, env=with_tests()) as running:
        yield running


def told_in(file: Path, driver: Running) -> dict[str, Any]:
    """Return what the driver says when all its items were trained on."""
    wait_until(lambda: file.exists() or has_ended(driver.pid), f"{file.name}", seconds=JOB)
    found: dict[str, Any] = json.loads(file.read_text())
    ledger = found["ledger"]
    assert ledger["done"] + ledger["finished"] == ledger["items"] * ledger["epochs"]
    return found


def test_a_host_that_comes_takes_part_and_one_that_is_taken_away_is_not_missed(
    hosts: Standalone, driver: Running, folder: Path
) -> None:
    tasks = folder / "waiting"
    wait_until(lambda: spark_models.waiting_in(tasks), "training to begin", seconds=JOB)
    hosts.start_host("127.0.0.3")
    wait_until(lambda: len(spark_models.waiting_in(tasks)) == 2, "a second worker", seconds=JOB)
    hosts.end_host("127.0.0.2")
    spark_models.let_go(tasks)

    found = told_in(folder / "waiting.json", driver)

    assert found["ledger"]["returned"] >= 1
    assert sum(found["items"].values()) > 0


def test_a_task_that_stalls_is_speculated_upon_and_its_item_is_trained_on_elsewhere(
    hosts: Standalone, driver: Running, folder: Path
) -> None:
    hosts.start_host("127.0.0.4")
    (folder / "second").touch()

    found = told_in(folder / "stalling.json", driver)

    assert (folder / "stalls").exists()
    assert found["ledger"]["returned"] + len(found["items"]) >= 2
