"""All that users do works on Spark Connect: the script is a client, and has no `SparkContext`."""

import json
import sys
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Final

import pytest

from support.processes import Running, with_tests
from support.spark import files_with
from support.spark_connect import connect_server
from support.wording import naming

ACCURACY_MIN: Final = 0.9

ROWS: Final = 1437
"""Of the digits that are not held out."""

CLIENT_SECONDS_MAX: Final = 400.0
"""It takes 160 s on two cores that other clusters use too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """Return what came of the steps of `support.spark_connect_client`."""
    log = folder / "client.log"
    with connect_server(folder) as address, log.open("wb") as output:
        command = [sys.executable, "-m", "support.spark_connect_client", address, str(folder)]
        with Running(command, stderr=output, env=with_tests()) as client:
            try:
                text, _ = client.communicate(timeout=CLIENT_SECONDS_MAX)
            except TimeoutExpired:
                pytest.fail(f"no end after {CLIENT_SECONDS_MAX:g} s: {log.read_text()}")
        assert client.returncode == 0, log.read_text()
    return dict(json.loads(text))


def test_the_session_is_one_of_connect(found: dict[str, Any]) -> None:
    assert found["session"] == "pyspark.sql.connect.session"


def test_each_row_of_an_export_is_trained_on_once(found: dict[str, Any]) -> None:
    assert found["export"] == {"rows": 4 * ROWS, "left": []}


def test_each_task_may_train_on_its_own_partition(found: dict[str, Any]) -> None:
    assert found["direct"]["rows"] == 4 * ROWS
    assert found["direct"]["score"] < 1.0


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


def test_early_stopping_returns_the_best_model(found: dict[str, Any]) -> None:
    early = found["early_stopping"]

    assert "target" in early["stopped"]
    assert early["best"] <= 0.35
    assert early["rows"] < 1_000 * ROWS
    assert early["score"] == pytest.approx(early["best"], rel=1e-4)


def test_it_is_a_stage_of_a_pipeline_that_is_saved(found: dict[str, Any]) -> None:
    assert found["pipeline"]["error"] < 0.3


def test_a_bad_row_is_a_typed_error_that_names_it(found: dict[str, Any]) -> None:
    failed = found["bad_rows"]

    said = naming("'features'", "element 1 is nan")
    assert failed["export"] == ["DataError", said]
    assert failed["direct"] == ["DataError", said]
    assert failed["text"] == ["DataError", naming("'label'", "pyspark.ml.feature.StringIndexer")]


def test_an_interrupt_ends_the_workers(found: dict[str, Any]) -> None:
    assert found["interrupt"] == {
        "reached": True,
        "failed": ["KeyboardInterrupt", ""],
        "ended": True,
    }


def test_no_file_has_a_key(found: dict[str, Any], folder: Path) -> None:
    """The event log has the plans that the client has sent, and the server's log names them."""
    assert files_with(folder, "SparkListenerConnectOperationStarted")
    assert files_with(folder, "SparkListenerTaskEnd")
    assert files_with(folder, "issuing-key") == []
