"""Parameters of an estimator that cannot be meant are refused by name, with what to use."""

from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

import torch
from torch import nn

from gradwire import UsageError
from gradwire.spark import TorchEstimator
from support import spark_models
from support.wording import naming

MODULE = nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"batchSize": 0}, naming("batchSize=0", "at least 1")),
        ({"approach": "both"}, naming("'both'", "export, direct")),
        ({"colour": "red"}, naming("'colour'", "batchSize")),
        ({"mode": "central"}, naming("central", "optimizer", "averaging")),
        ({"join": {"treshold": 1}}, naming("'treshold'", "threshold")),
        ({"join": {"meshBuildMode": "MESH"}}, naming("join", "'meshBuildMode'", "PLAIN")),
        ({"join": {"workerPrefetchNumBatches": 2}}, naming("'workerPrefetchNumBatches'", "loader")),
        ({"workerPrefetchNumBatches": 2}, naming("'workerPrefetchNumBatches'", "loader")),
        ({"averagingFrequency": 5}, naming("'averagingFrequency'", "gradwire.Averaging")),
    ],
    ids=str,
)  # fmt: skip
def test_a_parameter_that_is_wrong_is_named(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as failed:
        TorchEstimator().setParams(**parameters)

    assert str(failed.value) == said


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"optimizer": torch.optim.Adam(MODULE.parameters())}, naming("partial(torch.optim.Adam")),
        ({"optimizer": 0.1}, naming("optimizer", "float")),
        ({"loss": nn.MSELoss}, naming("loss=MSELoss()")),
        ({"model": 7}, naming("model", "int")),
        ({"trainBatch": "support.spark_models:FEATURES"}, naming("trainBatch", "int")),
    ],
    ids=["an optimizer", "a rate", "a class of losses", "a number", "a path to a number"],
)
def test_what_cannot_train_is_found_before_anything_runs(
    parameters: dict[str, Any], said: str
) -> None:
    values: dict[str, Any] = {
        "model": spark_models.linear,
        "loss": nn.MSELoss(),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        **parameters,
    }
    with pytest.raises(UsageError) as failed:
        TorchEstimator(**values)._recipe()

    assert str(failed.value) == said
