"""All that users do works on Spark Connect: the script is a client, and has no `SparkContext`."""

import json
import sys
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from support.processes import Running, with_tests
from support.spark import files_with
from support.spark_connect import address_of
from support.waiting import JOB
from support.wording import naming

ACCURACY_MIN: Final = 0.85

ROWS: Final = 1437
"""Of the digits that are not held out."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def found(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what came of the steps of `support.spark_connect_client`."""
    log = folder / "client.log"
    command = [sys.executable, "-m", "support.spark_connect_client"]
    command += [address_of(spark), str(folder)]
    with log.open("wb") as output, Running(command, stderr=output, env=with_tests()) as client:
        try:
            text, _ = client.communicate(timeout=JOB)
        except TimeoutExpired:
            pytest.fail(f"no end after {JOB:g} s: {log.read_text()}")
        assert client.returncode == 0, log.read_text()
    return dict(json.loads(text))


def test_the_session_is_one_of_connect(found: dict[str, Any]) -> None:
    assert found["session"] == "pyspark.sql.connect.session"


def test_an_export_is_trained_on_until_the_score_is_good_and_removed(
    found: dict[str, Any],
) -> None:
    export = found["export"]

    assert export["left"] == []
    assert "target" in export["stopped"]
    assert export["best"] <= 0.35
    assert export["rows"] < 1_000 * ROWS
    assert export["score"] == pytest.approx(export["best"], rel=1e-4)


def test_each_task_may_train_on_its_own_partition(found: dict[str, Any]) -> None:
    assert found["direct"] == ROWS


def test_predictions_are_good(found: dict[str, Any]) -> None:
    predicted = found["transform"]

    assert predicted["accuracy"] > ACCURACY_MIN
    assert predicted["total"] == pytest.approx(1.0, abs=1e-5)
    assert predicted["columns"] == [
        *("features", "label", "held_out"),
        *("prediction", "rawPrediction", "probability"),
    ]


def test_metrics_are_those_of_one_process(found: dict[str, Any]) -> None:
    values, expected = found["evaluate"]["found"], found["evaluate"]["expected"]

    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, rel=1e-5)


def test_scores_of_examples_have_the_score_as_their_mean(found: dict[str, Any]) -> None:
    assert found["scores"]["mean"] == pytest.approx(found["scores"]["score"], rel=1e-4)


def test_a_saved_model_predicts_the_same(found: dict[str, Any]) -> None:
    saved = found["saved"]

    assert saved["is_same"]
    assert saved["batch"] == 24
    assert saved["refused"][0] == "AnalysisException"
    assert "PATH_ALREADY_EXISTS" in saved["refused"][1]


def test_statistics_are_a_dataframe(found: dict[str, Any]) -> None:
    statistics = found["statistics"]

    assert statistics["rows"] == statistics["events"]
    assert statistics["workers"] == 2
    assert statistics["began"] == pytest.approx(statistics["first"], abs=1e-3)


def test_it_is_a_stage_of_a_pipeline_that_is_saved(found: dict[str, Any]) -> None:
    assert found["pipeline"]["is_same"]


def test_a_bad_row_is_a_typed_error_that_names_it(found: dict[str, Any]) -> None:
    failed = found["bad_rows"]

    assert failed["row"] == ["DataError", naming("'features'", "element 1 is nan")]
    assert failed["text"] == ["DataError", naming("'label'", "pyspark.ml.feature.StringIndexer")]


def test_an_interrupt_ends_the_workers(found: dict[str, Any]) -> None:
    assert found["interrupt"] == {
        "reached": True,
        "failed": ["KeyboardInterrupt", ""],
        "ended": True,
    }


def test_no_file_has_a_key(found: dict[str, Any], folder: Path, cluster_folder: Path) -> None:
    """The event log has the plans that the client has sent."""
    assert files_with(cluster_folder, "SparkListenerConnectOperationStarted")
    for each in (folder, cluster_folder):
        assert files_with(each, "issuing-key") == []
