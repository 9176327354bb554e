"""The driver of a training that lasts until it is ended.

``python -m support.spark_driver FOLDER CHECKPOINTS EPOCHS`` leaves a file ``trains`` in the folder
when it trains.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gradwire.spark import TorchEstimator
from support import spark_models
from support.spark import EXECUTORS, cluster, digits

STEP_SECONDS = 0.05


def estimator(folder: Path, **parameters: Any) -> TorchEstimator:
    """Return an estimator whose steps take `STEP_SECONDS`."""
    values = {
        "model": spark_models.digits_model,
        "loss": nn.CrossEntropyLoss(),
        "trainBatch": partial(spark_models.slow, str(folder), STEP_SECONDS),
        "optimizer": spark_models.adam,
        "numWorkers": EXECUTORS,
        **parameters,
    }
    return TorchEstimator(**values)


def main(folder: Path, checkpoints: str, epochs: str) -> None:
    """Train, with an executor in the process of the driver."""
    with cluster(folder, "local[1]") as spark:
        training = estimator(folder, checkpoint=checkpoints, epochs=int(epochs))
        training.fit(digits(spark).where("not held_out"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
