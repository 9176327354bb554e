"""Every benchmark still runs: each to its end, with sizes whose figures mean nothing."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.registry import BENCHMARKS
from support.namespaces import can_have_machines
from support.processes import Running
from support.tiers import variants

pytestmark = [pytest.mark.timeout(300)]

COMMAND = Path(__file__).parents[1] / "benchmarks"

SECONDS_MAX = 280
FIELDS = {
    "figure", "value", "unit", "rival", "rival_value", "ratio", "aim", "met", "runs", "commit",
    "quick",
}  # fmt: skip

NEED_MACHINES = ("convergence", "estimate", "lossy", "slowlink")
"""Without network namespaces these have nothing to measure; others leave some figures out."""
NEEDS_A_GPU = "codec-gpu"

LARGE = {
    "convergence": "two processes import torch",
    "recovery": "six masters start",
    "slowlink": "six processes import torch",
}
KEYLESS_SMALL = ("estimate", "latency", "overhead", "relay")
KEYLESS_LARGE = ("convergence", "slowlink")
"""These can be measured without keys as well as with them."""


def quick_figures(names: Sequence[str], folder: Path, *options: str) -> list[dict[str, Any]]:
    """Run benchmarks as a user does; return their figures."""
    file = folder / "figures.jsonl"
    command = [sys.executable, str(COMMAND), *names, "--quick", "--json", str(file), *options]
    log = folder / "log"
    with log.open("w") as out, Running(command, stdout=out, stderr=out) as running:
        status = running.wait(SECONDS_MAX)
    assert status == 0, log.read_text()
    return [json.loads(line) for line in file.read_text().splitlines()]


def check(figures: list[dict[str, Any]]) -> None:
    """Fail where figures could be taken for ones that mean something."""
    assert all(set(figure) == FIELDS for figure in figures)
    assert all(figure["quick"] and figure["met"] is None for figure in figures)
    assert len({(f["figure"], f["rival"], f["aim"]) for f in figures}) == len(figures)


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Return what a benchmark may take of a processor, where that is more than usual."""
    return [pytest.mark.processor_seconds(60, LARGE[name])] if name in LARGE else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in BENCHMARKS])
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    figures = quick_figures([name], tmp_path)

    measurable = name != NEEDS_A_GPU and (name not in NEED_MACHINES or can_have_machines())
    assert bool(figures) or not measurable
    check(figures)
    if name in (*KEYLESS_SMALL, *KEYLESS_LARGE) and figures:
        assert any("with keys" in figure["figure"] for figure in figures)


@pytest.mark.processor_seconds(60, "several benchmarks in one process")
@pytest.mark.parametrize("names", variants(KEYLESS_SMALL, KEYLESS_LARGE), ids=" ".join)
def test_benchmarks_run_to_their_ends_without_keys(names: Sequence[str], tmp_path: Path) -> None:
    figures = quick_figures(names, tmp_path, "--no-keys")

    check(figures)
    if can_have_machines():
        assert any("without keys" in figure["figure"] for figure in figures)
