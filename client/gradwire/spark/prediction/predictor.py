"""`Predictor`: a trained model as tasks use it: small, picklable, loaded once in each process."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import safetensors.torch
import torch
from torch import nn

from gradwire.errors import UsageError
from gradwire.spark.data.batches import Batch, Decode, batch_of
from gradwire.spark.data.columns import Column, Columns
from gradwire.spark.recipe import Outputs, Recipe, loaded
from gradwire.spark.training.worker import device_of_task, partition_of_task

MODELS_KEPT: Final = 2
"""Models in the memory of one Python worker: a pipeline or a comparison may use two in turn."""


Values = np.ndarray[Any, Any]
"""One for each row; the first axis is the row."""

Predict = Callable[[Batch], Values | dict[str, Values]]
"""What a predictor returns: one column, or several by name."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model and its weights."""

    recipe: bytes
    weights: bytes = field(repr=False)
    """As safetensors has them."""
    columns: Columns
    decode: Decode | None

    def model(self) -> nn.Module:
        """Return the module, in evaluation mode; the same one each time in a process."""
        return _loaded(self)

    def plan(self) -> Recipe:
        """Return the recipe."""
        return loaded(self.recipe)

    def outputs(self, batch: Batch) -> Outputs:
        """Return what the model makes of a batch."""
        model = self.model()
        device = next((each.device for each in model.parameters()), torch.device("cpu"))
        with torch.no_grad():
            return _on_processor(model(*batch.to(device).inputs))

    def __hash__(self) -> int:
        """Hash the weights."""
        return int.from_bytes(hashlib.sha256(self.weights).digest()[:8])

    def predict(self, batch: Batch) -> dict[str, Values]:
        """Return prediction, raw outputs and, for classes, probabilities of each row."""
        outputs = self.outputs(batch)
        raw = _flat(outputs)
        match self.plan().task:
            case "classification":
                probability = raw.softmax(dim=1)
                prediction = raw.argmax(dim=1)
            case "binary" if raw.shape[1] == 1:
                one = raw.sigmoid() if _has_logits(self.plan()) else raw
                probability = torch.cat((1 - one, one), dim=1)
                raw = torch.cat((-raw, raw), dim=1) if _has_logits(self.plan()) else probability
                prediction = one[:, 0] > 0.5
            case _:
                probability, prediction = raw[:, :0], raw[:, 0]
        return {
            "prediction": prediction.double().numpy(),
            "raw": raw.numpy(),
            "probability": probability.numpy(),
        }

    def features(self, layer: str, batch: Batch) -> Values:
        """Return what a layer makes of each row, as one vector."""
        with _output_of(self.model(), layer) as seen:
            self.outputs(batch)
        return _flat(seen[-1]).numpy()

    def losses(self, batch: Batch) -> Values:
        """Return the loss of each row."""
        with torch.no_grad():
            return self.plan().losses_of(self.outputs(batch), batch).float().numpy()


def in_batches(
    function: Predict, columns: Columns, decode: Decode | None, rows: int
) -> Callable[[Iterator[tuple[pd.Series, ...]]], Iterator[pd.Series]]:
    """Return a function as `pandas_udf` takes it, of series in the order of `columns`.

    Where a value is null or NaN, or an array has another width than the others, the task that
    computes the column raises `DataError`.

    Parameters
    ----------
    rows : int
        That go through the model at once.
    """

    def predict(parts: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        where, first = f"partition {partition_of_task()}", 0
        for part in parts:
            series = (part,) if isinstance(part, pd.Series) else part  # of one column
            arrays = [_arrow_of(each, c) for each, c in zip(series, columns.all, strict=True)]
            table = pa.table(arrays, [f"c{place}" for place, _ in enumerate(arrays)])
            found = [
                _in_pandas(function(batch_of(table.slice(start, rows), columns, decode,
                                             f"{where}, from row {first + start} on")))
                for start in range(0, max(1, len(table)), rows)
            ]  # fmt: skip
            first += len(table)
            yield pd.concat(found, ignore_index=True)

    return predict


def _arrow_of(series: pd.Series, column: Column) -> pa.Array:
    """Return a column that Spark has handed over, as it was: pandas has no null among numbers."""
    number = pa.int64() if column.is_integer else pa.float32()
    match column.kind:
        case "scalar":
            return pa.array(series, number, from_pandas=column.is_integer)
        case "array":
            rows = [None if each is None else _elements(each, column) for each in series]
            return pa.array(rows, pa.list_(number))
        case "binary":
            return pa.array(series, pa.binary())


def _elements(values: Values, column: Column) -> Any:
    """Return the elements of an array; among integers, NaN was null."""
    if column.is_integer and values.dtype.kind == "f":
        return [None if each != each else int(each) for each in values]
    return values


def _in_pandas(found: Values | dict[str, Values]) -> Any:
    if isinstance(found, dict):
        return pd.DataFrame({name: _rows_of(each) for name, each in found.items()})
    return _rows_of(found)


def _rows_of(values: Values) -> pd.Series:
    return pd.Series(list(values) if values.ndim > 1 else values)


def weights_of(state: dict[str, torch.Tensor]) -> bytes:
    """Return parameters and buffers as safetensors has them."""
    return safetensors.torch.save({name: each.contiguous() for name, each in state.items()})


def state_of(weights: bytes) -> dict[str, torch.Tensor]:
    """Return what `weights_of` was given."""
    return safetensors.torch.load(weights)


@lru_cache(maxsize=MODELS_KEPT)
def _loaded(predictor: Predictor) -> nn.Module:
    model = loaded(predictor.recipe).make_model()
    model.load_state_dict(state_of(predictor.weights))
    return model.eval().to(device_of_task())


def _flat(outputs: Outputs) -> torch.Tensor:
    """Return the first of several outputs, as one vector for each row."""
    found = _first(outputs).float()
    return found.flatten(start_dim=1) if found.ndim > 1 else found[:, None]


def _first(outputs: Outputs) -> torch.Tensor:
    found = outputs
    while not isinstance(found, torch.Tensor):
        found = next(iter(found.values() if isinstance(found, dict) else found))
    return found


def _on_processor(outputs: Outputs) -> Outputs:
    if isinstance(outputs, torch.Tensor):
        return outputs.cpu()
    if isinstance(outputs, dict):
        return {name: _on_processor(each) for name, each in outputs.items()}
    return type(outputs)(_on_processor(each) for each in outputs)


def _has_logits(recipe: Recipe) -> bool:
    loss = recipe.loss
    name = getattr(loss, "__name__", type(loss).__name__) if not isinstance(loss, str) else loss
    return "logits" in name.lower()


@contextmanager
def _output_of(model: nn.Module, layer: str) -> Iterator[list[Outputs]]:
    """Collect what a layer returns inside the block."""
    layers = dict(model.named_modules())
    if layer not in layers:
        names = ", ".join(name for name in layers if name)
        raise UsageError(f"the model has no layer {layer!r}; there are {names}")
    seen: list[Outputs] = []
    handle = layers[layer].register_forward_hook(lambda _, __, output: seen.append(output))
    try:
        yield seen
    finally:
        handle.remove()
