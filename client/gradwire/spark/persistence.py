"""Saved estimators and models: parameters as pyspark.ml saves them, weights as safetensors.

All goes through DataFrames, so it works on Spark Connect, and wherever Spark can write. There is no
pickled code: what was a function is saved as its import path.
"""

from typing import Any, Final

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql import SparkSession

from gradwire.spark.prediction.predictor import state_of, weights_of
from gradwire.spark.recipe import described, made_of

CHUNK_BYTES: Final = 64 << 20
"""Weights are saved in rows of so much: a cell of Spark has less than 2 GiB."""

CODE: Final = ("model", "loss", "optimizer", "trainBatch", "decode")
"""Parameters that are functions."""

NOT_SAVED: Final = ("resourceProfile", "keyFile", "master", "masterHttp", "masterTokenFile")
"""What belongs to a cluster. The path of a key would lead somebody to it."""


class TorchWriter(MLWriter):
    """Saves an estimator or a model."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def save(self, path: str) -> None:
        """Save to a path.

        Raises
        ------
        UsageError
            If a function has no import path.
        """
        instance, spark = self._instance, self.sparkSession
        values = {
            param.name: described(value, param.name) if param.name in CODE else value
            for param, value in instance._paramMap.items()
            if param.name not in NOT_SAVED
        }
        state = getattr(instance, "state", None)
        extra = {} if state is None else {"columns": instance.saved_columns()}
        metadata = DefaultParamsWriter._get_metadata_to_save(instance, spark, extra, values)
        # Connect does not know "error" by its other name.
        mode = "overwrite" if self.shouldOverwrite else "error"
        one = spark.createDataFrame([(metadata,)], "value string").coalesce(1)
        one.write.mode(mode).text(f"{path}/metadata")
        if state is not None:
            content = weights_of(state)
            rows = [
                (number, content[start : start + CHUNK_BYTES])
                for number, start in enumerate(range(0, len(content), CHUNK_BYTES))
            ]
            frame = spark.createDataFrame(rows, "number int, weights binary")
            frame.write.mode(mode).parquet(f"{path}/weights")


class TorchReader(MLReader[Any]):
    """Loads what `TorchWriter` saved."""

    def __init__(self, cls: type[Any]) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """Return the estimator or model."""
        spark = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, spark)
        instance = self._cls()
        instance._resetUid(metadata["uid"])
        for name, value in metadata["paramMap"].items():
            instance._set_value(name, made_of(value) if name in CODE else value)
        if "columns" in metadata:
            instance.restore(_weights(spark, path), metadata["columns"])
        return instance


def _weights(spark: SparkSession, path: str) -> dict[str, Any]:
    rows = spark.read.parquet(f"{path}/weights").orderBy("number").collect()
    return state_of(b"".join(bytes(row["weights"]) for row in rows))
