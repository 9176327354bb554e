"""A session's numbers in Weights & Biases, MLflow and OpenTelemetry, as docs/logging.md shows."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire import Session
from support.local_master import LocalMaster
from support.sessions import join

pytestmark = pytest.mark.timeout(120)

PAGE = Path(__file__).parents[3] / "docs" / "logging.md"


def snippet(section: str) -> str:
    """Return what the page has under a headline, in Python."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return str(code)


def train(section: str, session: Session, **names: Any) -> dict[str, Any]:
    """Run a snippet, which calls `train_step` in its loop; return its names."""
    target = names.pop("target")
    losses = iter([3.0, 2.0, 1.0])

    def train_step() -> float:
        target[0] += 0.5
        session.step()
        return next(losses)

    scope = {"session": session, "train_step": train_step, "steps": 3, **names}
    code = snippet(section).removesuffix("run.finish()\n")  # the test looks first
    exec(compile(code, str(PAGE), "exec"), scope)
    return scope


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_and_biases_has_loss_and_numbers(
    master: LocalMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "ERROR_REPORTING": "false"}
    for name, value in quiet.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb = pytest.importorskip("wandb")
    target = torch.zeros(4)
    with join(master, [target]) as session:
        scope = train("Weights & Biases", session, target=target)

    summary = dict(scope["run"].summary)
    scope["run"].finish()
    wandb.teardown()
    assert summary["loss"] == 2.0, "the last step comes with the end"
    assert summary["gradwire/steps"] == 2
    assert summary["gradwire/density"] == 0.25
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow_has_loss_and_numbers(
    master: LocalMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its databases need more packages
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    target = torch.zeros(4)
    with join(master, [target]) as session:
        train("MLflow", session, target=target)

    [run] = mlflow.search_runs(output_format="list")
    assert run.data.metrics["loss"] == 1.0
    assert run.data.metrics["gradwire/steps"] == 3
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_opentelemetry_has_counters_and_gauges_with_units(master: LocalMaster) -> None:
    reader = pytest.importorskip("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    target = torch.zeros(4)
    with join(master, [target]) as session:
        scope = train("OpenTelemetry", session, target=target, reader=reader)
        first = read(reader)
        target[1] += 0.5
        session.step()
        second = read(reader)
    scope["provider"].shutdown()

    assert first["gradwire.session.steps"] == ("Sum", "", 3.0)
    assert second["gradwire.session.steps"] == ("Sum", "", 4.0), "it asks once more"
    assert first["gradwire.session.density"] == ("Gauge", "", 0.25)
    assert first["gradwire.session.bytes_encoded"][:2] == ("Sum", "By")
    assert first["gradwire.session.encode"][:2] == ("Sum", "s")
    assert first["gradwire.session.residual_age"][:2] == ("Gauge", "{step}")
    assert "gradwire.session.agreement" not in first, "there is none"


def read(reader: Any) -> dict[str, tuple[str, str, float]]:
    """Return kind, unit and value of each instrument."""
    [resource] = json.loads(reader.get_metrics_data().to_json())["resource_metrics"]
    found = {}
    for scope in resource["scope_metrics"]:
        for metric in scope["metrics"]:
            data = metric["data"]
            kind = "Sum" if "is_monotonic" in data else "Gauge"
            for point in data["data_points"]:
                assert math.isfinite(point["value"])
                found[metric["name"]] = kind, metric["unit"] or "", point["value"]
    return found
