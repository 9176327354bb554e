"""The file that a session keeps its numbers in."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire import join
from gradwire.features.stats_file import WRITE_SECONDS, StatsFile
from gradwire.replica.stats import SessionStats
from support.local_master import LocalMaster


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stats_of(steps: int) -> Any:
    """Return stats that differ in the steps alone."""
    numbers: dict[str, Any] = dict.fromkeys(SessionStats.__dataclass_fields__, 0)
    return SessionStats(**numbers | {"steps": steps})


def step(file: StatsFile, clock: Clock, computing: float, sharing: float) -> None:
    clock.now += computing
    file.beginning.before_push()
    clock.now += sharing
    file.after_step()


def test_a_session_keeps_its_numbers_in_the_file_that_the_environment_names(
    master: LocalMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_STATS_FILE", str(tmp_path / "stats-{rank}.json"))
    parameters = np.zeros(1000, np.float32)

    with join(parameters, master=master.address, threshold=0.1) as session:
        for _ in range(5):
            parameters += np.float32(0.2)
            session.step()

    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "stats-0.json"
    assert (found["rank"], found["parameters"]) == (0, 1000)
    assert found["stats"]["steps"] == 5
    assert found["stats"]["elements_sent"] >= 5000
    assert 0 < found["step_seconds"] < found["seconds"]
    assert 0 < found["session_seconds"] < found["seconds"]


def test_a_step_is_what_lies_between_two_of_the_sessions(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "stats.json"
    file = StatsFile(path, 0, 10, lambda: stats_of(3), clock=clock)
    for _ in range(3):
        step(file, clock, computing=0.3, sharing=0.05)
    clock.now += 50.0
    file.beginning.before_push()  # and paused, so that it does not end
    clock.now += 50.0
    for _ in range(2):
        step(file, clock, computing=0.3, sharing=0.05)

    file.on_leave()

    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["step_seconds"] == pytest.approx(0.3)
    assert found["session_seconds"] == pytest.approx(0.05)


def test_the_file_is_replaced_once_a_second(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "stats.json"
    asked = []

    def read() -> Any:
        asked.append(clock.now)
        return stats_of(len(asked))

    file = StatsFile(path, 0, 10, read, clock=clock)
    for _ in range(40):
        step(file, clock, computing=WRITE_SECONDS / 8, sharing=0.0)

    assert len(asked) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json"]


def test_a_folder_that_is_not_there_is_told_once_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = tmp_path / "none" / "stats.json"
    file = StatsFile(path, 0, 10, lambda: stats_of(1), clock=clock)

    for _ in range(3):
        step(file, clock, computing=2.0, sharing=0.0)

    assert len([r for r in caplog.records if "is not written any more" in r.message]) == 1
