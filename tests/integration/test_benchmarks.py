"""Every benchmark still runs: each to its end, with sizes whose figures mean nothing."""

import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

from benchmarks import codec, codec_size
from benchmarks.registry import BENCHMARKS
from support.namespaces import can_have_machines
from support.processes import Running
from support.waiting import BENCHMARK

COMMAND = Path(__file__).parents[1] / "benchmarks"

FIELDS = {
    "benchmark", "figure", "value", "unit", "rival", "rival_value", "ratio", "aim", "met", "runs",
    "commit", "quick", "machine", "date", "command", "load",
}  # fmt: skip

NEED_MACHINES = ("convergence", "defaults", "lossy", "modes", "slowlink", "time-to-loss")
"""Without network namespaces these have nothing to measure; others leave some figures out."""

OF_THEIR_OWN = ("codec", "codec-size", "sealed", "spark")
"""These have tests of their own; that of the last one is ``spark/test_benchmark.py``."""

KEYLESS = (
    "convergence", "defaults", "latency", "overhead", "relay", "scale", "slowlink", "time-to-loss",
    "watching",
)  # fmt: skip
"""These can be measured without keys as well."""


def figures_of(name: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Run a benchmark as a user does; return what it has measured."""
    file, log = folder / "figures.jsonl", folder / "log"
    command = [sys.executable, str(COMMAND), name, "--quick", "--json", str(file), *options]
    with (
        log.open("w") as out,
        suppress(TimeoutExpired),
        Running(command, stdout=out, stderr=out) as running,
    ):
        running.wait(BENCHMARK)
    said = log.read_text()
    assert running.returncode == 0, said
    figures = [json.loads(line) for line in file.read_text().splitlines()]
    measurable = name not in NEED_MACHINES or can_have_machines()
    assert bool(figures) or not measurable, said
    # None could be taken for one that means something, or for another one.
    assert all(set(figure) == FIELDS for figure in figures)
    assert all(figure["quick"] and figure["met"] is None for figure in figures)
    assert {figure["benchmark"] for figure in figures} <= {name}
    named = Counter((f["figure"], f["rival"], f["aim"]) for f in figures)
    assert [each for each, times in named.items() if times > 1] == []
    return figures


@pytest.mark.deep("a run of every benchmark")
@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in OF_THEIR_OWN])
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    figures = figures_of(name, tmp_path)

    if name in KEYLESS and figures:
        assert any("with keys" in figure["figure"] for figure in figures)


@pytest.mark.deep("a run of every benchmark")
def test_one_runs_without_keys_where_it_is_told_to(tmp_path: Path) -> None:
    figures = figures_of("latency", tmp_path, "--no-keys")

    assert all("without keys" in figure["figure"] for figure in figures)


def test_one_that_takes_little_runs_to_its_end(tmp_path: Path) -> None:
    """All others are left to the deep tier; what runs them is the same."""
    assert figures_of("sealed", tmp_path)


@pytest.mark.deep("a run of every benchmark")
def test_speed_and_memory_of_the_codec_are_measured(tmp_path: Path) -> None:
    figures = figures_of("codec", tmp_path)

    assert all(figure["value"] > 0 and figure["rival_value"] > 0 for figure in figures)
    passes = [figure for figure in figures if "threshold pass" in figure["figure"]]
    assert len(passes) == len(codec.PASS_AIMS), "one for each density, on one thread"


@pytest.mark.deep("a run of every benchmark")
def test_the_demo_is_trained_and_its_updates_are_measured(tmp_path: Path) -> None:
    figures = figures_of("codec-size", tmp_path)

    first = [figure["figure"] for figure in figures].index("mean of 4 updates of the demo")
    mean, together, *sizes = figures[first:]
    assert mean["runs"] == 4
    assert 0.5 < mean["ratio"] < 2
    assert 0.5 < together["ratio"] < 2
    assert {figure["value"] for figure in sizes} == {sizes[0]["value"]}
    assert {figure["rival"] for figure in sizes} >= {codec_size.DL4J, codec_size.DENSE}
