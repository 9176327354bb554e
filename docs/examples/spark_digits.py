"""Handwritten digits on a Spark cluster: a small convolutional network, trained until it is good.

It needs Java, and starts a cluster of two executors on this machine unless a master is named::

    python docs/examples/spark_digits.py
    python docs/examples/spark_digits.py spark://10.0.2.4:7077
"""

import argparse
import os
import sys
from functools import partial

import torch
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from gradwire.spark import TorchEstimator

HELD_OUT = 5  # every fifth row

parser = argparse.ArgumentParser()
parser.add_argument("master", nargs="?", default="local-cluster[2,1,1024]")
arguments = parser.parse_args()


def make_model() -> nn.Module:
    """Return a classifier of images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors run the same Python
spark = SparkSession.builder.master(arguments.master).appName("digits").getOrCreate()

digits = load_digits()
rows = [
    (image.tolist(), int(label), place % HELD_OUT == 0)
    for place, (image, label) in enumerate(zip(digits.data / 16, digits.target, strict=True))
]
data = spark.createDataFrame(rows, "features array<float>, label int, held_out boolean")

estimator = TorchEstimator(
    model=make_model,
    loss=nn.CrossEntropyLoss(),
    optimizer=partial(torch.optim.Adam, lr=2e-3),
    validationIndicatorCol="held_out",
    batchSize=16,
    epochs=30,
    earlyStopping={"patience": 3},
    numWorkers=2,
)
model = estimator.fit(data)  # the model of the best epoch

print(model.summary)
accuracy = MulticlassAccuracy(num_classes=10, average="micro")
found = model.evaluate(data.where("held_out"), {"accuracy": accuracy})
print(f"held out: loss {found['loss']:.4f}, accuracy {found['accuracy']:.4f}")
spark.stop()
