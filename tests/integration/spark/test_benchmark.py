"""Benchmark `spark` runs to its end, with sizes whose figures mean nothing."""

import json
import sys
from pathlib import Path

from support.processes import Running

COMMAND = Path(__file__).parents[2] / "benchmarks"

SECONDS_MAX = 400


def test_a_training_is_measured_beside_spark_s_own_means(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    command = [sys.executable, str(COMMAND), "spark", "--quick", "--json", str(file)]

    with Running(command) as running:
        assert running.wait(SECONDS_MAX) == 0

    figures = {each["figure"]: each for each in map(json.loads, file.read_text().splitlines())}
    assert {"whole job", "training", "accuracy", "sent with DDP"} <= figures.keys()
    assert figures["accuracy"]["value"] > 0
