"""``gradwire estimate`` with real processes: it measures this machine, and a real training."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli.estimate.costs import Costs
from support.processes import completed
from support.waiting import JOB

EXAMPLE = str(Path(__file__).parents[2] / "docs" / "examples" / "train.py")
PARAMETERS = 32 * 98 + 16 * 32 * 256 + 256 + 257 * 98
"""About those of the example; how many characters it knows is its own affair."""

SHORT = """
import gradwire, numpy as np, sys
target = np.zeros(1000, np.float32)
with gradwire.join(target, threshold=float(sys.argv[1])) as session:
    session.wait()
    for _ in range(40):
        target[::4] += np.float32(0.125)
        session.step()
"""

FAILS = """
import gradwire, numpy as np
target = np.zeros(100, np.float32)
with gradwire.join(target) as session:
    session.wait()
    raise RuntimeError("the data is not where it should be")
"""


def gradwire_estimate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, "-m", "gradwire", "estimate", *arguments], seconds=JOB)


@pytest.fixture(scope="module")
def measured_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the JSON of an estimate with costs that were measured on this machine."""
    done = gradwire_estimate("--step-seconds", "0.1", "--parameters", "200k", "--json")
    assert done.returncode == 0, done.stderr
    assert "measuring a master and sessions on loopback" in done.stderr
    assert all(line.startswith("gradwire estimate: ") for line in done.stderr.splitlines())
    path = tmp_path_factory.mktemp("estimate") / "here.json"
    path.write_text(done.stdout, encoding="utf-8")
    return path


def test_costs_are_measured_on_this_machine(measured_here: Path) -> None:
    costs = Costs.read(measured_here)

    assert costs.pass_seconds_per_parameter > 0
    assert costs.apply_seconds > 0
    assert costs.network_seconds > 0
    assert costs.master_update_seconds + costs.master_delivery_seconds > 0


@pytest.mark.deep("an estimate from a script that runs")
def test_a_script_is_measured_as_it_is(measured_here: Path) -> None:
    options = ["--measure-seconds", "4", "--link", "100Mbit", "--costs", str(measured_here)]

    done = gradwire_estimate("--measure", EXAMPLE, *options, "--json", "--", "--steps", "100000")

    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["inputs"]["parameters"] == pytest.approx(PARAMETERS, rel=0.1)
    assert found["inputs"]["step_seconds"] > 0
    assert 0 < found["inputs"]["density"] < 1
    assert found["inputs"]["update_bytes"] > 100
    assert 0 < found["linear_fraction"] < 1
    # What it prints is no data of ours.
    assert "[0] rank 0 of 2" in done.stderr
    assert "[1] rank 1 of 2" in done.stderr


@pytest.mark.deep("an estimate from a script that runs")
def test_a_script_that_is_done_sooner_is_measured_too(tmp_path: Path, measured_here: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(SHORT, encoding="utf-8")
    options = ["--measure-seconds", "60", "--costs", str(measured_here), "--step-seconds", "50ms"]

    done = gradwire_estimate("--measure", str(script), *options, "--json", "--", "0.125")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["inputs"]
    assert found["step_seconds"] == 0.05
    assert found["parameters"] == 1000
    assert found["density"] == pytest.approx(0.25)


@pytest.mark.deep("an estimate from a script that runs")
def test_the_error_of_a_script_that_fails_is_shown(tmp_path: Path, measured_here: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS, encoding="utf-8")

    done = gradwire_estimate("--measure", str(script), "--costs", str(measured_here))

    assert done.returncode == 1
    assert done.stdout == ""
    assert "the data is not where it should be" in done.stderr
    assert "the script ended with status 1" in done.stderr


@pytest.mark.deep("an estimate from a script that runs")
def test_a_script_without_a_session_is_told_what_is_missing(
    tmp_path: Path, measured_here: Path
) -> None:
    script = tmp_path / "other.py"
    script.write_text("print('no training here')", encoding="utf-8")

    done = gradwire_estimate("--measure", str(script), "--costs", str(measured_here))

    assert done.returncode == 2
    assert "no training here" in done.stderr
    assert "it has to call session.step() in its loop" in done.stderr
