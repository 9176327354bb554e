"""`Recipe`: how to make the model, its loss and its optimizer, on the driver and in each task.

A recipe goes to tasks pickled, but a saved model holds none: import paths say what it is made of.
"""

import copy
import inspect
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal

import torch
from pyspark import cloudpickle
from torch import nn
from torch.nn import functional

from gradwire.errors import UsageError
from gradwire.spark.data.batches import Batch

Outputs = Any
"""What a model returns: a tensor, or several."""

Task = Literal["classification", "binary", "regression"]

NOT_SENT: Final = (
    "the model, loss or optimizer cannot be sent to executors ({}): pass a function that makes it, "
    "as model=make_model"
)

CLASSES: Final = (nn.CrossEntropyLoss, nn.NLLLoss)
CLASS_FUNCTIONS: Final = (functional.cross_entropy, functional.nll_loss)
BINARY: Final = (nn.BCEWithLogitsLoss, nn.BCELoss)
BINARY_FUNCTIONS: Final = (
    functional.binary_cross_entropy_with_logits,
    functional.binary_cross_entropy,
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is trained, and how.

    Parameters
    ----------
    model : callable, nn.Module or str
        A function that returns the module, its import path ``"package.module:function"``, or the
        module itself.
    loss : callable or str
        From outputs and targets to a tensor with one element, the mean over rows.
    optimizer : callable or str
        From parameters to an optimizer, such as ``partial(torch.optim.Adam, lr=1e-3)``.
    train_batch : callable or str, optional
        From the module and a `Batch` to the loss, in place of ``loss(model(*inputs), targets)``.
    seed : int
        Of the parameters that the function draws.
    """

    model: Any
    loss: Any
    optimizer: Any
    train_batch: Any
    seed: int

    def make_model(self) -> nn.Module:
        """Return a new module, with the same parameters each time.

        Raises
        ------
        UsageError
            If the function returns something else.
        """
        found = resolved(self.model)
        if isinstance(found, nn.Module):
            return _copied(found, {})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            made = found()
        if not isinstance(made, nn.Module):
            raise UsageError(
                f"model: {self.model!r} returns an object of type {type(made).__name__}; it has to "
                "return a torch.nn.Module"
            )
        return made

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer of the module's parameters."""
        made = resolved(self.optimizer)(model.parameters())
        if not isinstance(made, torch.optim.Optimizer):
            raise UsageError(
                f"optimizer: {self.optimizer!r} returns an object of type {type(made).__name__}; "
                "it has to return a torch.optim.Optimizer, as partial(torch.optim.Adam, lr=1e-3) "
                "does when it is called with the parameters"
            )
        return made

    def loss_of(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch, with which to go backward."""
        if self.train_batch is not None:
            return resolved(self.train_batch)(model, batch)  # type: ignore[no-any-return]
        outputs = model(*batch.inputs)
        if batch.weights is None:
            return self._loss(outputs, batch)
        losses = self.losses_of(outputs, batch)
        return (losses * batch.weights).sum() / batch.weights.sum().clamp_min(1e-12)

    def losses_of(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        """Return the loss of each row, of shape (rows,)."""
        loss = self._given_loss()
        if hasattr(loss, "reduction"):
            unreduced = copy.copy(loss)
            unreduced.reduction = "none"
        elif "reduction" in _parameters_of(loss):
            unreduced = partial(loss, reduction="none")
        else:
            one = [
                self._loss(_row(outputs, row), batch.rows(slice(row, row + 1)))
                for row in range(len(batch))
            ]
            return torch.stack(one)
        losses: torch.Tensor = unreduced(outputs, self._targets(outputs, batch))
        return losses.reshape(len(batch), -1).mean(dim=1)

    @property
    def task(self) -> Task:
        """What the loss is for."""
        loss = resolved(self.loss)
        if isinstance(loss, CLASSES) or loss in CLASS_FUNCTIONS:
            return "classification"
        if isinstance(loss, BINARY) or loss in BINARY_FUNCTIONS:
            return "binary"
        return "regression"

    def dumped(self) -> bytes:
        """Return the recipe pickled, without the parameters of a module: they come with the run.

        Raises
        ------
        UsageError
            If something cannot be pickled.
        """
        model = self.model
        if isinstance(model, nn.Module):
            model = _without_storage(model)
        try:
            return cloudpickle.dumps(  # type: ignore[no-any-return]
                (model, self.loss, self.optimizer, self.train_batch, self.seed)
            )
        except Exception as error:
            raise UsageError(NOT_SENT.format(error)) from error

    def _loss(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        return self._given_loss()(outputs, self._targets(outputs, batch))

    def _given_loss(self) -> Callable[..., torch.Tensor]:
        if self.loss is None:
            raise UsageError("no loss: besides trainBatch, pass loss= to the estimator to score")
        return resolved(self.loss)  # type: ignore[no-any-return]

    def _targets(self, outputs: Outputs, batch: Batch) -> Any:
        """Return the targets as the loss wants them; without labels, the inputs."""
        targets = batch.targets or batch.inputs
        if len(targets) > 1:
            return targets
        target = targets[0]
        if not isinstance(outputs, torch.Tensor):
            return target
        if self.task == "classification":
            if target.ndim == outputs.ndim - 1 or not target.is_floating_point():
                return target.long()
            return target  # probabilities
        # Of shapes (n, 1) and (n,), a loss would make a matrix of all pairs.
        fits = target.numel() == outputs.numel() and outputs.is_floating_point()
        return target.reshape(outputs.shape).to(outputs.dtype) if fits else target


def loaded(content: bytes) -> Recipe:
    """Return the recipe that `Recipe.dumped` made."""
    model, loss, optimizer, train_batch, seed = cloudpickle.load(io.BytesIO(content))
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()  # of one element, expanded
    return Recipe(model, loss, optimizer, train_batch, seed)


def resolved(value: Any) -> Any:
    """Return what an import path leads to; anything else as it is.

    Raises
    ------
    UsageError
        If nothing is there.
    """
    if not isinstance(value, str):
        return value
    module, colon, name = value.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{value!r} cannot be imported: {error}. It has to be like 'package.module:function', "
            "of a package that driver and executors have"
        ) from error
    if not colon:
        raise UsageError(f"{value!r} is no import path: it has to be like 'package.module:name'")
    return found


def described(value: Any, what: str) -> Any:
    """Return what `made_of` makes the value of again, as JSON has it.

    Raises
    ------
    UsageError
        If there is no import path of it.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, partial):
        given = dict(value.keywords)
        if not value.args and _is_plain(given):
            return {"partial": described(value.func, what), "arguments": given}
    elif isinstance(value, nn.Module):
        if (arguments := _arguments_of(value)) is not None:
            return {"call": described(type(value), what), "arguments": arguments}
    else:
        module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "<>")
        path = f"{module}:{name}"
        if module not in {"__main__", "", None} and "<" not in name and resolved(path) is value:
            return path
    raise UsageError(
        f"{what}: {value!r} has no import path, and a saved model holds no pickled code: pass a "
        f"function of a module, or its path, as in {what}='package.module:function'"
    )


def made_of(description: Any) -> Any:
    """Return what `described` has described.

    Raises
    ------
    UsageError
        If it is a call of something else than a torch module: the file would run any code.
    """
    if not isinstance(description, dict):
        return description
    arguments = description["arguments"]
    if "partial" in description:
        return partial(resolved(description["partial"]), **arguments)
    made = resolved(description["call"])
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise UsageError(f"{description['call']!r} in a saved model is no torch module")
    return made(**arguments)


def _arguments_of(module: nn.Module) -> dict[str, Any] | None:
    """Return what a loss was made with; None if that cannot be seen, as for a model."""
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        return None
    names = set(inspect.signature(type(module)).parameters)
    found = {name: getattr(module, name) for name in names if hasattr(module, name)}
    found = {name: value for name, value in found.items() if value is not None}
    return found if _is_plain(found) else None


def _is_plain(arguments: dict[str, Any]) -> bool:
    return all(isinstance(v, bool | int | float | str | list | tuple) for v in arguments.values())


def _parameters_of(function: Callable[..., Any]) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


def _row(outputs: Outputs, row: int) -> Outputs:
    if isinstance(outputs, torch.Tensor):
        return outputs[row : row + 1]
    return type(outputs)(_row(each, row) for each in outputs)


def _without_storage(module: nn.Module) -> nn.Module:
    """Return a copy whose parameters take no memory, and none in a pickle."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return _copied(module, memo)


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy. Raises `UsageError` if the module cannot be copied, nor sent to executors."""
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise UsageError(NOT_SENT.format(error)) from error
