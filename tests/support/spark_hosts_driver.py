"""Two trainings of two workers each, on a cluster that others start and end hosts of.

``python -m support.spark_hosts_driver FOLDER MASTER`` leaves ``waiting.json`` in the folder, and
then ``stalling.json``: the ledger of items, and how many each attempt had. The second training
begins when there is a file ``second``.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from torch import nn

from gradwire.spark import TorchEstimator
from support import spark_models
from support.spark import cluster, digits
from support.waiting import JOB, wait_until

SETTINGS: Final = {
    "spark__speculation": "true",
    "spark__speculation__interval": "200ms",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__minTaskRuntime": "1s",
}


def train(data: DataFrame, report: Path, train_batch: Any, **parameters: Any) -> None:
    """Train, and write what came of it."""
    model = TorchEstimator(
        model=spark_models.digits_model,
        loss=nn.CrossEntropyLoss(),
        trainBatch=train_batch,
        optimizer=spark_models.adam,
        epochs=2,
        numWorkers=2,
        **parameters,
    ).fit(data)
    assert model.summary is not None
    items = {worker.attempt: worker.items for worker in model.summary.workers}
    unfinished = report.with_suffix(".part")
    unfinished.write_text(json.dumps({"ledger": model.summary.ledger, "items": items}))
    unfinished.rename(report)


def main(folder: Path, master: str) -> None:
    """Train twice."""
    with cluster(folder / "spark", master, **SETTINGS) as spark:
        data = digits(spark)
        train(data, folder / "waiting.json", partial(spark_models.waiting, str(folder / "waiting")))
        wait_until((folder / "second").exists, "another host", seconds=JOB)
        stalling = partial(spark_models.stalling, str(folder))
        train(data, folder / "stalling.json", stalling, leaseSeconds=3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
