"""`TorchModel`: a trained module as a model of pyspark.ml."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import pandas_udf
from torch import nn

from gradwire.errors import UsageError
from gradwire.spark.data.columns import Column, Columns, columns_of, expression
from gradwire.spark.params import TorchParams
from gradwire.spark.persistence import TorchReader, TorchWriter
from gradwire.spark.prediction.predictor import Predict, Predictor, in_batches, weights_of
from gradwire.spark.recipe import Recipe
from gradwire.spark.statistics.summary import Summary

if TYPE_CHECKING:
    from torchmetrics import Metric

    from gradwire.spark.training.beginning import OptimizerState
    from gradwire.spark.training.plan import Outcome

ROWS: Final = 1024
"""Rows that go through the model at once."""

OUTPUTS: Final = T.StructType(
    [
        T.StructField("prediction", T.DoubleType()),
        T.StructField("raw", T.ArrayType(T.FloatType())),
        T.StructField("probability", T.ArrayType(T.FloatType())),
    ]
)


class TorchModel(TorchParams, Model, MLReadable[Any], MLWritable):
    """A trained module. `TorchEstimator.fit` returns it, and `TorchModel.load` a saved one."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self._set_given(parameters)
        self.state: dict[str, torch.Tensor] | None = None
        """Parameters and buffers by name."""
        self.optimizer: OptimizerState | None = None
        """What an optimizer has kept, for a training that goes on from here. It is not saved."""
        self.summary: Summary | None = None
        """What the training was like; None for a model that was loaded."""
        self._columns: Columns | None = None

    @property
    def module(self) -> nn.Module:
        """A new module with the trained parameters, in evaluation mode."""
        module = self._recipe().make_model()
        module.load_state_dict(self._trained())
        return module.eval()

    def evaluate(
        self,
        dataset: DataFrame,
        metrics: "Mapping[str, Metric] | Sequence[Metric] | Metric",
    ) -> dict[str, Any]:
        """Compute metrics in one pass over the data, as one process would that sees all rows.

        Parameters
        ----------
        dataset : DataFrame
        metrics : torchmetrics.Metric, or several in a list or by name
            Curves grow with the data, unless ``thresholds=`` bounds them.

        Returns
        -------
        dict
            Values by name, and the mean loss as ``"loss"``.
        """
        from gradwire.spark.prediction.evaluation import evaluated, named

        return evaluated(self._predictor(dataset, labels=True), dataset, named(metrics), rows=ROWS)

    def score(self, dataset: DataFrame) -> float:
        """Return the mean loss over all rows."""
        from gradwire.spark.prediction.evaluation import LOSS, evaluated

        predictor = self._predictor(dataset, labels=True)
        return float(evaluated(predictor, dataset, {}, rows=ROWS)[LOSS])

    def scoreExamples(self, dataset: DataFrame, scoreCol: str = "score") -> DataFrame:
        """Return the DataFrame with the loss of each row in a new column."""
        predictor = self._predictor(dataset, labels=True)
        predictor = replace(predictor, columns=replace(predictor.columns, weight=None))
        return dataset.withColumn(
            scoreCol, _predicted(dataset, predictor, predictor.losses, T.FloatType())
        )

    def featureSpace(
        self, dataset: DataFrame, layer: str, outputCol: str = "featureSpace"
    ) -> DataFrame:
        """Return the DataFrame with what a layer makes of each row in a new column, a vector.

        Parameters
        ----------
        dataset : DataFrame
        layer : str
            As `nn.Module.named_modules` calls it, such as ``"encoder.2"``.
        outputCol : str
        """
        names = [name for name, _ in self.module.named_modules() if name]
        if layer not in names:
            raise UsageError(f"the model has no layer {layer!r}; there are {', '.join(names)}")
        predictor = self._predictor(dataset, labels=False)
        found = _predicted(
            dataset,
            predictor,
            partial(predictor.features, layer),
            T.ArrayType(T.FloatType()),
        )
        return dataset.withColumn(outputCol, array_to_vector(found.cast("array<double>")))

    def write(self) -> TorchWriter:
        """Return what saves the model; functions need import paths."""
        return TorchWriter(self)

    @classmethod
    def read(cls) -> TorchReader:
        """Return what loads a saved model."""
        return TorchReader(cls)

    # For the estimator and for what is saved.

    def set_trained(self, outcome: "Outcome", columns: Columns | None) -> None:
        """Take over what a training has come to."""
        self.state, self._columns = outcome.state, columns
        self.optimizer = outcome.optimizer
        self.summary = Summary(outcome)

    def saved_columns(self) -> list[list[Any]]:
        """Return the columns of features as JSON has them."""
        columns = () if self._columns is None else self._columns.features
        return [[c.name, c.kind, c.is_integer, c.width] for c in columns]

    def restore(self, state: dict[str, torch.Tensor], columns: list[list[Any]]) -> None:
        """Take over what was saved."""
        self.state = state
        self._columns = Columns(tuple(Column(*each) for each in columns), (), None)

    # Private.

    def _transform(self, dataset: DataFrame) -> DataFrame:
        predictor = self._predictor(dataset, labels=False)
        outputs = "gradwire_outputs"
        found = dataset.withColumn(
            outputs, _predicted(dataset, predictor, predictor.predict, OUTPUTS)
        )
        added = {self._value("predictionCol"): F.col(f"{outputs}.prediction")}
        vectors = {"rawPredictionCol": "raw"}
        if predictor.plan().task != "regression":
            vectors["probabilityCol"] = "probability"
        for param, name in vectors.items():
            values = F.col(f"{outputs}.{name}").cast("array<double>")
            added[self._value(param)] = array_to_vector(values)
        return found.withColumns(added).drop(outputs)

    def _recipe(self) -> Recipe:
        return Recipe(self._value("model"), self._value("loss"), None, None, self._value("seed"))

    def _trained(self) -> dict[str, torch.Tensor]:
        if self.state is None:
            raise UsageError("this model has no parameters: fit() of an estimator returns one")
        return self.state

    def _predictor(self, dataset: DataFrame, *, labels: bool) -> Predictor:
        found = columns_of(
            dataset,
            self._value("featuresCol"),
            (self._value("labelCol") or []) if labels else [],
            self._value("weightCol") if labels else None,
        )
        known = () if self._columns is None else self._columns.features
        widths = {place: column.width for place, column in enumerate(known)}
        features = tuple(
            Column(c.name, c.kind, c.is_integer, widths.get(place))
            for place, c in enumerate(found.features)
        )
        columns = Columns(features, found.labels, found.weight)
        return Predictor(
            self._recipe().dumped(), weights_of(self._trained()), columns, self._value("decode")
        )


def _predicted(
    data: DataFrame, predictor: Predictor, function: Predict, returned: T.DataType
) -> SqlColumn:
    """Return the column of what a function makes of others, in batches."""
    columns = predictor.columns
    batches = in_batches(function, columns, predictor.decode, ROWS)
    return pandas_udf(batches, returnType=returned)(*(expression(data, c) for c in columns.all))
