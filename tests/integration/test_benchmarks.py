"""Every benchmark still runs: each to its end, with sizes whose figures mean nothing."""

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import codec_size
from benchmarks.registry import BENCHMARKS
from support.namespaces import can_have_machines
from support.processes import Running
from support.tiers import IS_DEEP, LEFT_OUT

SECONDS_MAX = 900
"""For all of them together, beside whatever else a machine does."""
pytestmark = [pytest.mark.timeout(SECONDS_MAX + 30)]

COMMAND = Path(__file__).parents[1] / "benchmarks"

FIELDS = {
    "benchmark", "figure", "value", "unit", "rival", "rival_value", "ratio", "aim", "met", "runs",
    "commit", "quick",
}  # fmt: skip

NEED_MACHINES = ("convergence", "defaults", "estimate", "lossy", "slowlink")
"""Without network namespaces these have nothing to measure; others leave some figures out."""
NEEDS_A_GPU = "codec-gpu"

NEEDS_A_CLUSTER = "spark"
"""The deep tier runs it, in ``spark/test_benchmark.py``."""

LONG = ("convergence", "defaults", "estimate", "latency", "modes", "recovery", "scale", "slowlink")
"""The deep tier runs these, which take four fifths of the time of all."""

MEASURED = [
    name for name in BENCHMARKS if name != NEEDS_A_CLUSTER and (IS_DEEP or name not in LONG)
]
LEFT_OUT["benchmarks that take longest"] += 0 if IS_DEEP else len(LONG)

KEYLESS = (
    "convergence", "defaults", "estimate", "latency", "overhead", "relay", "slowlink", "watching",
)  # fmt: skip
"""These are measured without keys as well as with them."""


@dataclass(frozen=True)
class Outcome:
    """What came of all benchmarks."""

    figures: list[dict[str, Any]]
    failed: str
    """The line that names those that failed."""
    log: str

    def said_of(self, name: str) -> str:
        """Return what one of them has written."""
        return self.log.partition(f"\n{name}: measuring\n")[2].partition(": measuring\n")[0]

    def figures_of(self, name: str) -> list[dict[str, Any]]:
        """Return what one of them has measured."""
        return [figure for figure in self.figures if figure["benchmark"] == name]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run them as a user does, in one process: most of their time is imports."""
    folder = tmp_path_factory.mktemp("benchmarks")
    file, log = folder / "figures.jsonl", folder / "log"
    command = [sys.executable, str(COMMAND), *MEASURED, "--quick", "--json", str(file)]
    with log.open("w") as out, Running(command, stdout=out, stderr=out) as running:
        status = running.wait(SECONDS_MAX)
    said = log.read_text()
    failed = said.splitlines()[-1] if status else ""
    assert failed.startswith("failed: ") or not status, said
    return Outcome([json.loads(line) for line in file.read_text().splitlines()], failed, said)


@pytest.mark.parametrize("name", MEASURED)
def test_a_benchmark_runs_to_its_end(name: str, outcome: Outcome) -> None:
    figures = outcome.figures_of(name)

    assert name not in outcome.failed.replace(",", "").split(), outcome.said_of(name)
    measurable = name != NEEDS_A_GPU and (name not in NEED_MACHINES or can_have_machines())
    assert bool(figures) or not measurable
    # None could be taken for one that means something, or for another one.
    assert all(set(figure) == FIELDS for figure in figures)
    assert all(figure["quick"] and figure["met"] is None for figure in figures)
    named = Counter((f["figure"], f["rival"], f["aim"]) for f in figures)
    assert [each for each, times in named.items() if times > 1 + (name in KEYLESS)] == []
    if name in KEYLESS and figures:
        assert any("with keys" in figure["figure"] for figure in figures)
        assert any("without keys" in figure["figure"] for figure in figures)


def test_speed_and_memory_of_the_codec_are_measured(outcome: Outcome) -> None:
    figures = outcome.figures_of("codec")

    assert all(figure["value"] > 0 and figure["rival_value"] > 0 for figure in figures)
    assert sum("threshold pass" in figure["figure"] for figure in figures) == 5


def test_the_demo_is_trained_and_its_updates_are_measured(outcome: Outcome) -> None:
    figures = outcome.figures_of("codec-size")
    first = [figure["figure"] for figure in figures].index("mean of 4 updates of the demo")
    mean, together, *sizes = figures[first:]

    assert mean["runs"] == 4
    assert 0.5 < mean["ratio"] < 2
    assert 0.5 < together["ratio"] < 2
    assert {figure["value"] for figure in sizes} == {sizes[0]["value"]}
    assert {figure["rival"] for figure in sizes} >= {codec_size.DL4J, codec_size.DENSE}
