"""What cannot work is one typed error at the driver that says what to change."""

from functools import partial
from typing import Any

import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn

from gradwire import GradwireError, UsageError
from gradwire.spark import DataError, TorchEstimator, WorkerFailedError
from support import spark_models
from support.spark import line
from support.wording import naming


def fit(frame: DataFrame, **parameters: Any) -> Any:
    values: dict[str, Any] = {
        "model": spark_models.linear,
        "loss": nn.MSELoss(),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "batchSize": 8,
        **parameters,
    }
    return TorchEstimator(**values).fit(frame)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return line(spark).persist()


@pytest.mark.parametrize(
    ("change", "parameters", "said"),
    [
        (lambda f: f.drop("label"), {}, naming("'label'", "features")),
        (
            lambda f: f.withColumn("label", F.lit("cat")),
            {},
            naming("'label'", "pyspark.ml.feature.StringIndexer"),
        ),
        (
            lambda f: f.withColumn("features", F.struct("features")),
            {},
            naming("'features'", "struct<features:array<double>>"),
        ),
        (lambda f: f, {"earlyStopping": {"patience": 1}}, naming("validationIndicatorCol")),
        (lambda f: f, {"networkMask": "300.1.1.1"}, naming("300.1.1.1")),
    ],
    ids=["missing", "text", "struct", "nothing to validate with", "mask"],
)  # fmt: skip
def test_what_the_schema_shows_is_found_before_any_task_runs(
    spark: SparkSession,
    frame: DataFrame,
    change: Any,
    parameters: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(UsageError) as failed:
        fit(change(frame), numWorkers=2, **parameters)

    assert str(failed.value) == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.where("label > 1e9"), naming("no rows")),
        (
            lambda f: f.withColumn("features", F.array(F.lit(1.0), F.lit(2.0), F.lit(3.0))),
            naming("features (3,)"),
        ),
    ],
    ids=["no rows", "wrong width"],
)
def test_what_the_first_row_shows_is_found_before_the_cluster_trains(
    frame: DataFrame, change: Any, said: str
) -> None:
    with pytest.raises(UsageError) as failed:
        fit(change(frame), numWorkers=2)

    assert str(failed.value) == said


def spoiled(frame: DataFrame, features: str) -> DataFrame:
    """Return the rows with one in the middle that has other features."""
    numbered = frame.coalesce(1).withColumn("row", F.monotonically_increasing_id())
    return numbered.withColumn("features", F.expr(f"if(row = 40, {features}, features)"))


@pytest.mark.parametrize("approach", ["export", "direct"])
@pytest.mark.parametrize(
    ("features", "said"),
    [
        ("null", naming("'features'", "null")),
        ("array(1D, double('NaN'))", naming("'features'", "element 1 is nan")),
        ("array(1D)", naming("'features'", "1 elements", "2")),
    ],
    ids=["null", "NaN", "another width"],
)
def test_a_bad_row_ends_the_training_after_one_attempt(
    spark: SparkSession, frame: DataFrame, features: str, said: str, approach: str
) -> None:
    with pytest.raises(DataError) as failed:
        fit(spoiled(frame, features), numWorkers=2, approach=approach, repartition=False)

    assert str(failed.value) == said
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def test_one_row_is_trained_on(frame: DataFrame) -> None:
    model = fit(frame.limit(1), numWorkers=2, epochs=2)

    assert model.summary.rows == 2


def test_empty_partitions_are_no_error(spark: SparkSession, frame: DataFrame) -> None:
    few = frame.limit(3).coalesce(1).repartition(6, "label")

    assert fit(few, approach="direct", repartition=False).summary.rows == 3


def test_a_model_that_no_executor_can_make_is_found_before_training(
    data: DataFrame,
) -> None:
    with pytest.raises(WorkerFailedError) as failed:
        fit(data, model=spark_models.model_that_fails, loss=nn.CrossEntropyLoss())

    assert str(failed.value) == naming("no weights on this host")


def test_a_factory_that_executors_cannot_import_is_named(
    frame: DataFrame, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(2, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(GradwireError) as failed:
        fit(frame, model="only_here:make")

    assert str(failed.value) == naming("only_here", "executors have")


def test_a_model_that_does_not_pickle_is_named(frame: DataFrame) -> None:
    model = nn.Linear(2, 1)
    model.lock = __import__("threading").Lock()

    with pytest.raises(UsageError) as failed:
        fit(frame, model=model)

    assert str(failed.value) == naming("model=make_model")


def test_training_that_diverges_ends_with_its_own_error(frame: DataFrame) -> None:
    with pytest.raises(GradwireError) as failed:
        fit(frame, optimizer=partial(torch.optim.SGD, lr=1e6), epochs=20)

    assert type(failed.value).__name__ == "DivergedError"


def test_input_that_is_never_the_same_is_refused_by_direct(frame: DataFrame) -> None:
    random = frame.withColumn("x", F.rand()).repartition(3, "x")

    with pytest.raises(DataError) as failed:
        fit(random, approach="direct")

    assert str(failed.value) == naming("approach='export'", "rand()")
    fit(random, numWorkers=2)


def test_a_parameter_that_is_wrong_is_named() -> None:
    for parameters, said in (
        ({"batchSize": 0}, naming("batchSize=0", "at least 1")),
        ({"approach": "both"}, naming("'both'", "export, direct")),
        ({"colour": "red"}, naming("'colour'", "batchSize")),
        ({"mode": "central"}, naming("central", "optimizer", "averaging")),
    ):
        with pytest.raises(UsageError) as failed:
            TorchEstimator().setParams(**parameters)
        assert str(failed.value) == said


def test_a_port_in_use_is_named(frame: DataFrame) -> None:
    import socket

    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(GradwireError) as failed:
            fit(frame, numWorkers=2, port=port)

    assert str(failed.value) == naming(str(port))
