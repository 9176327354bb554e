"""`Predictor`: a trained model as tasks use it: small, picklable, loaded once in each process."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch
from torch import nn

from gradwire.errors import UsageError
from gradwire.spark.data.batches import Batch, Decode
from gradwire.spark.data.columns import Columns
from gradwire.spark.recipe import Outputs, Recipe, loaded
from gradwire.spark.training.worker import device_of_task

MODELS_KEPT: Final = 2
"""Models in the memory of one Python worker: a pipeline or a comparison may use two in turn."""


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

    def predict(self, *columns: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Return prediction, raw outputs and, for classes, probabilities of each row."""
        outputs = self.outputs(self.inputs_of(columns))
        raw = _first(outputs).reshape(len(columns[0]), -1).float()
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

    def features(self, layer: str, *columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return what a layer makes of each row, as one vector."""
        with _output_of(self.model(), layer) as seen:
            self.outputs(self.inputs_of(columns))
        return _first(seen[-1]).reshape(len(columns[0]), -1).float().numpy()

    def losses(self, *columns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the loss of each row, of features and labels."""
        count = len(self.columns.features)
        inputs = self.inputs_of(columns[:count])
        labels = tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in columns[count:])
        batch = Batch(inputs.inputs, labels, None)
        with torch.no_grad():
            return self.plan().losses_of(self.outputs(batch), batch).float().numpy()

    def inputs_of(self, columns: tuple[np.ndarray[Any, Any], ...]) -> Batch:
        """Return columns of features as a batch."""
        tensors = []
        for column, values in zip(self.columns.features, columns, strict=True):
            if column.kind == "binary":
                decode = self.decode or (lambda content: np.frombuffer(content, np.uint8).copy())
                tensors.append(torch.stack([torch.as_tensor(decode(v)) for v in values]))
            else:
                kind = np.int64 if column.is_integer else np.float32
                tensors.append(torch.from_numpy(np.ascontiguousarray(values, kind)))
        return Batch(tuple(tensors), (), None)


def with_parameters(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function of so many columns: `predict_batch_udf` looks at the signature."""

    def predict(*columns: np.ndarray[Any, Any]) -> Any:
        return function(*columns)

    named = (Parameter(f"column_{place}", Parameter.POSITIONAL_ONLY) for place in range(count))
    predict.__signature__ = Signature(list(named))  # type: ignore[attr-defined]
    return predict


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
