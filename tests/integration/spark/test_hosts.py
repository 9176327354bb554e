"""Executors that come, go and stall in the middle of a training, on a standalone cluster."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support import spark_models
from support.processes import Running, has_ended, with_tests
from support.spark_standalone import standalone
from support.waiting import JOB, wait_until


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what came of two trainings, by the name of what their tasks do.

    In the first one, a host comes when a task waits on the only one there is, and that one is taken
    away. The second one has two hosts.
    """
    folder = tmp_path_factory.mktemp("hosts")
    tasks = folder / "waiting"
    tasks.mkdir()
    with standalone(folder / "cluster") as hosts:
        hosts.start_host("127.0.0.2")
        command = [sys.executable, "-m", "support.spark_hosts_driver", str(folder), hosts.address]
        with Running(command, env=with_tests()) as driver:
            wait_until(lambda: spark_models.waiting_in(tasks), "training to begin", seconds=JOB)
            hosts.start_host("127.0.0.3")
            wait_until(lambda: len(spark_models.waiting_in(tasks)) == 2, "another", seconds=JOB)
            hosts.end_host("127.0.0.2")
            spark_models.let_go(tasks)
            waiting = told_in(folder / "waiting.json", driver)
            hosts.start_host("127.0.0.4")
            (folder / "second").touch()
            return {"waiting": waiting, "stalling": told_in(folder / "stalling.json", driver)}


def told_in(file: Path, driver: Running) -> dict[str, Any]:
    """Return what the driver says when a training is over."""
    wait_until(lambda: file.exists() or has_ended(driver.pid), file.name, seconds=JOB)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def is_complete(ledger: dict[str, Any]) -> bool:
    """Return whether all items were trained on."""
    return bool(ledger["done"] + ledger["finished"] == ledger["items"] * ledger["epochs"])


def test_a_host_that_comes_takes_part_and_one_that_is_taken_away_is_not_missed(
    told: dict[str, Any],
) -> None:
    found = told["waiting"]

    assert is_complete(found["ledger"])
    assert found["ledger"]["returned"] >= 1
    assert sum(found["items"].values()) > 0


def test_a_task_that_stalls_is_speculated_upon_and_its_item_is_trained_on_elsewhere(
    told: dict[str, Any],
) -> None:
    found = told["stalling"]

    assert is_complete(found["ledger"])
    assert found["ledger"]["returned"] + len(found["items"]) >= 2
