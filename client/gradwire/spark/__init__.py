"""Training on Spark, in ordinary tasks: `TorchEstimator` and `TorchModel`.

::

    from gradwire.spark import TorchEstimator

    estimator = TorchEstimator(
        model=make_model, loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.Adam, lr=1e-3),
        featuresCol="features", labelCol="label", batchSize=64, epochs=3,
    )
    model = estimator.fit(training)
    model.transform(test)

Workers are tasks without a barrier: Spark may retry them, take them away, add some and run some of
them twice. The master divides the data among those that are there (`Session.items`). Needs
``pip install '.[spark]'`` in a checkout, on the driver and on executors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gradwire.spark.data.batches import Batch
    from gradwire.spark.errors import DataError, WorkerFailedError
    from gradwire.spark.estimator import TorchEstimator
    from gradwire.spark.prediction.model import TorchModel

MODULES: Final = {
    "Batch": "data.batches",
    "DataError": "errors",
    "TorchEstimator": "estimator",
    "TorchModel": "prediction.model",
    "WorkerFailedError": "errors",
}

__all__ = [
    "Batch",
    "DataError",
    "TorchEstimator",
    "TorchModel",
    "WorkerFailedError",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: the errors need neither pyspark nor torch."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
