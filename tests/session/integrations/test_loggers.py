"""The snippets of docs/logging.md, run as they stand with the libraries that they are for.

None of these is a dependency of ours: where one is not installed, its test is skipped.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.local_master import LocalMaster
from support.sessions import join, zeros

PAGE = Path(__file__).parents[3] / "docs" / "logging.md"

STEPS = 3

Numbers = dict[str, float]


def kept_by_wandb(scope: dict[str, Any]) -> Numbers:
    scope["run"].log({}, step=STEPS)  # a step is in the summary when the next one begins
    kept = dict(scope["run"].summary)
    scope["run"].finish()
    scope["wandb"].teardown()
    return kept


def kept_by_mlflow(scope: dict[str, Any]) -> Numbers:
    mlflow = scope["mlflow"]
    run = mlflow.active_run().info.run_id
    mlflow.end_run()
    metrics: Numbers = mlflow.get_run(run).data.metrics
    return metrics


def kept_by_trackio(scope: dict[str, Any]) -> Numbers:
    from trackio.sqlite_storage import SQLiteStorage

    scope["trackio"].finish()
    numbers: Numbers = SQLiteStorage.get_logs("gradwire", "worker-0")[-1]
    return numbers


def kept_by_opentelemetry(scope: dict[str, Any]) -> Numbers:
    [resource] = scope["reader"].get_metrics_data().resource_metrics
    [metric] = resource.scope_metrics[0].metrics
    points = metric.data.data_points
    assert {point.attributes["rank"] for point in points} == {0}
    return {f"gradwire/{point.attributes['name']}": point.value for point in points}


def provide_a_meter(scope: dict[str, Any]) -> None:
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    scope["reader"] = InMemoryMetricReader()
    set_meter_provider(MeterProvider([scope["reader"]]))


LOGGERS: dict[str, tuple[str, Callable[[dict[str, Any]], Numbers]]] = {
    "Weights & Biases": ("wandb", kept_by_wandb),
    "MLflow": ("mlflow", kept_by_mlflow),
    "trackio": ("trackio", kept_by_trackio),
    "OpenTelemetry": ("opentelemetry.sdk", kept_by_opentelemetry),
}


@pytest.mark.filterwarnings("default")  # theirs
@pytest.mark.parametrize("name", LOGGERS)
def test_a_snippet_of_the_page_brings_numbers_to_its_logger(
    name: str, master: LocalMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, kept = LOGGERS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    pytest.importorskip(package)
    section = PAGE.read_text(encoding="utf-8").partition(f"## {name}\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    before, _, inside = found[1].partition("  # before the loop\n")
    target = zeros()

    with join(master, target) as session:
        scope: dict[str, Any] = {"session": session}
        if name == "OpenTelemetry":
            provide_a_meter(scope)
        exec(before, scope)
        for step in range(STEPS):
            target += 1
            session.step()
            exec(inside, scope | {"loss": np.float32(0.5), "step": step})
        numbers = kept(scope)

    assert numbers["gradwire/steps"] == STEPS
    assert numbers["gradwire/updates_sent"] > 0
    assert name == "OpenTelemetry" or numbers["loss"] == 0.5
