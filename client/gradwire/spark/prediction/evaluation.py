"""Metrics and losses of a whole DataFrame, in one pass over it.

Each task updates metrics of its own. The driver merges their states, so that the values are those
of one process that has seen all rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import torch
import torchmetrics
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from torchmetrics.utilities import dim_zero_mean

from gradwire.errors import UsageError
from gradwire.spark.data.batches import batch_of
from gradwire.spark.data.columns import selected
from gradwire.spark.prediction.predictor import Predictor
from gradwire.spark.training.fit import check
from gradwire.spark.training.tasks import task
from gradwire.spark.training.worker import REPORT_DDL, new_report, noting, row_of

Metrics = Mapping[str, torchmetrics.Metric]

LOSS: Final = "loss"
"""Name of the mean loss among the results."""


def evaluated(
    predictor: Predictor, data: DataFrame, metrics: Metrics, *, rows: int
) -> dict[str, Any]:
    """Return the values of metrics, and the mean loss as ``"loss"``.

    Parameters
    ----------
    rows : int
        That go through the model at once.

    Raises
    ------
    UsageError
        If the states of a metric cannot be merged.
    DataError
        If the data is not what the model takes.
    """
    for name, metric in metrics.items():
        # The mean of two means is none where their counts differ.
        if metric.full_state_update or dim_zero_mean in metric._reductions.values():
            raise UsageError(
                f"metric {name!r}: {type(metric).__name__} cannot be computed in parts that are "
                "merged exactly; compute it from model.transform(df)"
            )
    frame = selected(data, predictor.columns)
    content = cloudpickle.dumps(dict(metrics))
    function = task(_evaluate, predictor, content, rows)
    reports = check(frame.mapInArrow(function, REPORT_DDL).collect())
    total: dict[str, torchmetrics.Metric] = {}
    loss = weight = 0.0
    for report in reports:
        if report.extra is None:
            continue
        part_loss, part_weight, part = cloudpickle.loads(report.extra)
        if part_weight:
            loss, weight = loss + part_loss, weight + part_weight
            _merge(total, part)
    if not weight:
        raise UsageError("evaluate: the DataFrame has no rows")
    values = {name: _plain(metric.compute()) for name, metric in total.items()}
    return {LOSS: loss / weight, **values}


def named(metrics: Metrics | Sequence[torchmetrics.Metric] | torchmetrics.Metric) -> Metrics:
    """Return metrics by name; those without one are called as their class."""
    if isinstance(metrics, torchmetrics.Metric):
        metrics = [metrics]
    if isinstance(metrics, Mapping):
        return metrics
    found = {type(each).__name__: each for each in metrics}
    if len(found) < len(metrics):
        raise UsageError("evaluate: two metrics of one class; pass a dict with a name for each")
    return found


def _evaluate(
    predictor: Predictor, content: bytes, rows: int, parts: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    report = new_report()
    with noting(report):
        metrics: dict[str, torchmetrics.Metric] = cloudpickle.loads(content)
        recipe, loss, weight = predictor.plan(), 0.0, 0.0
        for part in parts:
            for start in range(0, part.num_rows, rows):
                where = f"partition {report.partition}"
                batch = batch_of(
                    part.slice(start, rows), predictor.columns, predictor.decode, where
                )
                outputs = predictor.outputs(batch)
                with torch.no_grad():
                    losses = recipe.losses_of(outputs, batch)
                weights = torch.ones(len(batch)) if batch.weights is None else batch.weights
                loss += float((losses * weights).double().sum())
                weight += float(weights.double().sum())
                for metric in metrics.values():
                    metric.update(*_compared(recipe.task, outputs, batch.targets or batch.inputs))
        report.extra = cloudpickle.dumps((loss, weight, metrics))
    for _ in parts:
        pass
    yield row_of(report)


def _compared(task: str, outputs: Any, targets: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    """Return outputs and targets of the shapes that metrics compare."""
    target = targets[0] if len(targets) == 1 else targets
    if not isinstance(outputs, torch.Tensor) or not isinstance(target, torch.Tensor):
        return outputs, target
    if task == "classification":
        return outputs, target.long()
    if target.numel() == outputs.numel():
        outputs = outputs.reshape(target.shape)
    return outputs, target.long() if task == "binary" else target


def _merge(total: dict[str, torchmetrics.Metric], part: dict[str, torchmetrics.Metric]) -> None:
    """Add the states of a task."""
    for name, metric in part.items():
        if name not in total:
            total[name] = metric
        elif metric.full_state_update is None:  # unknown: `merge_state` then refuses
            total[name]._reduce_states(metric.metric_state)
        else:
            total[name].merge_state(metric)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.ndim == 0 else value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
