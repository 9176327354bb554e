"""A training of two workers, on a cluster that others start and end hosts of.

``python -m support.spark_hosts_driver FOLDER MASTER slow|stalling [SETTING=VALUE ...]`` prints the
ledger of items, and how many each attempt had, as JSON.
"""

import json
import sys
from functools import partial
from pathlib import Path

from torch import nn

from gradwire.spark import TorchEstimator
from support import spark_models
from support.spark import cluster, digits

if __name__ == "__main__":
    folder, master, batch, *settings = sys.argv[1:]
    slow = partial(spark_models.slow, folder, 0.1)
    given = dict(setting.split("=", 1) for setting in settings)
    with cluster(Path(folder) / "spark", master, **given) as spark:
        model = TorchEstimator(
            model=spark_models.digits_model,
            loss=nn.CrossEntropyLoss(),
            trainBatch=slow if batch == "slow" else partial(spark_models.stalling, folder),
            optimizer=spark_models.adam,
            batchSize=16,
            epochs=4,
            numWorkers=2,
            leaseSeconds=3,
        ).fit(digits(spark))
        assert model.summary is not None
        items = {worker.attempt: worker.items for worker in model.summary.workers}
        print(json.dumps({"ledger": model.summary.ledger, "items": items}))
