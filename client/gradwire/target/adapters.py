"""The adapter of a target: numpy's, or torch's where torch is imported."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gradwire.errors import UsageError
from gradwire.target.buffers import ModuleBuffers, check_size
from gradwire.target.data_parallel import check_whole
from gradwire.target.parameters import NumpyParameters, Parameters, Places
from gradwire_codecs.arrays import describe

if TYPE_CHECKING:
    import torch

    from gradwire.target.torch_buffers import KeptBuffers


def module_of(target: object) -> "torch.nn.Module | None":
    """Return the target if it is a module of torch, else None.

    A caller that passes something of torch has imported it; others need not load it.
    """
    torch = sys.modules.get("torch")
    return target if torch is not None and isinstance(target, torch.nn.Module) else None


def parameters_of(target: object) -> Parameters:
    """Return the adapter for a target; `UsageError` if that cannot be trained."""
    if isinstance(target, np.ndarray):
        return NumpyParameters(target)
    tensors, module = _tensors_of(target)
    from gradwire.target.torch_parameters import TorchParameters

    return TorchParameters(tensors, module)


def identities_of(target: object) -> frozenset[int]:
    """Return numbers of which two targets share one if they share a tensor, or are one array.

    They are valid as long as the target exists. `UsageError` if it cannot be trained.
    """
    if isinstance(target, np.ndarray):
        return frozenset([target.__array_interface__["data"][0]])
    tensors, _ = _tensors_of(target)
    return frozenset(id(tensor) for _, tensor in tensors)


def places_of(target: object) -> Places:
    """Return how to write a target's parameters in place; `UsageError` if it cannot be trained."""
    if isinstance(target, np.ndarray):
        parameters = NumpyParameters(target)
        return Places(parameters.layout, [partial(np.copyto, parameters.vector)])
    tensors, _ = _tensors_of(target)
    from gradwire.target.torch_parameters import layout_of, trained_of, write

    trained = trained_of(tensors)
    return Places(layout_of(trained), [partial(write, tensor) for _, tensor in trained])


def _tensors_of(
    target: object,
) -> "tuple[Sequence[tuple[str, torch.Tensor]], torch.nn.Module | None]":
    """Return the tensors of a target with their names, and its module if it is one."""
    module = module_of(target)
    if module is not None:
        from gradwire.target.module_tree import named_parameters

        check_whole(module.modules(), module.parameters())
        return named_parameters(module), module
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and isinstance(target, Sequence)
        and all(isinstance(each, torch.Tensor) for each in target)
    ):
        check_whole((), target)
        return [(str(i), tensor) for i, tensor in enumerate(target)], None
    raise UsageError(
        "the target has to be a torch.nn.Module, a list of torch tensors, or a float32 numpy "
        f"array, not {describe(target)}{_remedy_for(target)}"
    )


def _remedy_for(target: object) -> str:
    """Return what to write instead, where the mistake is a usual one."""
    if isinstance(target, Mapping):
        return ": pass the model itself, a state dict is a copy that no optimizer changes"
    if isinstance(target, Iterator):
        return ": pass the model itself, or list(model.parameters())"
    if hasattr(target, "param_groups"):
        return ": an optimizer goes by its name, as in join(model, optimizer=optimizer)"
    return ""


def kept_buffers_of(target: object) -> "KeptBuffers | None":
    """Return what writes the buffers of a file into a target; None if that is no module."""
    module = module_of(target)
    if module is None:
        return None
    from gradwire.target.torch_buffers import KeptBuffers

    return KeptBuffers(module)


def buffers_of(target: object, averaged: Sequence[str] = ()) -> ModuleBuffers | None:
    """Return the buffers of a target that workers share; None without any.

    `averaged` names those that are averaged besides running statistics. `UsageError` if they have
    no values yet, or are too large.
    """
    module = module_of(target)
    if module is None:
        return None
    from gradwire.target.torch_buffers import TorchBuffers

    buffers = TorchBuffers(module, averaged)
    if not sum(buffers.layout.sizes):
        return None
    check_size(buffers.layout)
    return buffers
