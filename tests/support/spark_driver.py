"""The driver of a training that lasts until it is ended: ``python -m support.spark_driver FOLDER``.

It prints the process id of its master before the first step, and how `fit` has ended.
"""

import sys
from functools import partial
from pathlib import Path

from gradwire.spark import TorchEstimator
from support import spark_models
from support.spark import cluster, digits

STEP_SECONDS = 0.05
EPOCHS = 10_000

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with cluster(folder) as spark:
        estimator = TorchEstimator(
            model=spark_models.digits_model,
            trainBatch=partial(spark_models.slow, str(folder), STEP_SECONDS),
            optimizer=spark_models.adam,
            epochs=EPOCHS,
        )
        try:
            estimator.fit(digits(spark))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
