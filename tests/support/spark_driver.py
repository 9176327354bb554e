"""The driver of a training that lasts until it is ended.

``python -m support.spark_driver FOLDER [CHECKPOINTS EPOCHS]`` leaves a file in the folder when it
trains, and prints "interrupted" if that is how `fit` has ended.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gradwire.spark import TorchEstimator
from support import spark_models
from support.spark import cluster, digits

STEP_SECONDS = 0.05
EPOCHS = 10_000


def estimator(folder: Path, **parameters: Any) -> TorchEstimator:
    """Return an estimator whose steps take `STEP_SECONDS`."""
    values = {
        "model": spark_models.digits_model,
        "loss": nn.CrossEntropyLoss(),
        "trainBatch": partial(spark_models.slow, str(folder), STEP_SECONDS),
        "optimizer": spark_models.adam,
        "epochs": EPOCHS,
        **parameters,
    }
    return TorchEstimator(**values)


def main(folder: Path, checkpoints: str | None = None, epochs: str = str(EPOCHS)) -> None:
    """Train."""
    with cluster(folder) as spark:
        training = estimator(folder, checkpoint=checkpoints, epochs=int(epochs))
        try:
            training.fit(digits(spark).where("not held_out"))
        except KeyboardInterrupt:
            print("interrupted", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
