"""`TorchBuffers`: the buffers of a torch module that are state of its training.

Each call looks them up in the module, because ``load_state_dict(assign=True)`` and
``module.to(...)`` replace the tensors. Left alone are buffers with ``persistent=False``, which are
no state; boolean, complex, sparse and quantized tensors; and buffers registered after the session
began.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from gradwire.errors import UsageError
from gradwire.target.buffers import BufferLayout, BufferTensor, BufferValues
from gradwire.target.module_tree import COMPILED, memory_of

INTEGERS: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
"""Types whose values all fit int64; torch has few operations for larger ones."""


class TorchBuffers:
    """Named buffers, read and written in place."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        found = dict(_averaged(module))
        for name, tensor in found.items():
            _check(name, tensor)
        self._floats = [name for name, each in found.items() if each.dtype.is_floating_point]
        self._integers = [name for name in found if not found[name].dtype.is_floating_point]
        is_wide = any(found[name].dtype == torch.float64 for name in self._floats)
        self._float_type = torch.float64 if is_wide else torch.float32
        self.layout = BufferLayout(
            tuple(_describe(name, found[name]) for name in self._floats),
            tuple(_describe(name, found[name]) for name in self._integers),
            8 if is_wide else 4,
        )

    @torch.no_grad()
    def read(self) -> BufferValues:
        """Return a copy of the values, in the memory of the host."""
        found = self._current()
        floats = _concatenate([found[name] for name in self._floats], self._float_type)
        integers = _concatenate([found[name] for name in self._integers], torch.int64)
        return BufferValues(floats.numpy(), integers.numpy())

    @torch.no_grad()
    def write(self, values: BufferValues) -> None:
        """Set the buffers that have other values; do not touch the others.

        A backward pass that still needs a buffer would fail if that were written to. So a mask,
        say, which has the same values at all workers, stays usable.
        """
        found, present = self._current(), self.read()
        for names, new, old in (
            (self._floats, values.floats, present.floats),
            (self._integers, values.integers, present.integers),
        ):
            at = 0
            for name in names:
                tensor = found[name]
                part = slice(at, at + tensor.numel())
                at += tensor.numel()
                if not np.array_equal(new[part], old[part]):
                    # A copy: torch warns of arrays that cannot be written to, as received ones.
                    tensor.copy_(torch.from_numpy(new[part].copy()).view(tensor.shape))

    def _current(self) -> dict[str, torch.Tensor]:
        """Return the present tensors; refuse those that differ from the layout."""
        found = dict(_averaged(self._module))
        for described in (*self.layout.floats, *self.layout.integers):
            tensor = found.get(described.name)
            if tensor is None:
                raise UsageError(
                    f"buffer {described.name!r} is gone: a session averages the buffers that it "
                    "began with. Register it with persistent=False, or pass share_buffers=False"
                )
            if _describe(described.name, tensor) != described:
                raise UsageError(
                    f"buffer {described.name!r} changed from {described.type} "
                    f"{described.shape} to {tensor.dtype} {tuple(tensor.shape)}; a session "
                    "averages the buffers that it began with. Register it with persistent=False, "
                    "or pass share_buffers=False"
                )
        return found


def _averaged(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over the buffers that are averaged, each once, with its first name."""
    seen: set[object] = set()
    for path, part in module.named_modules():
        for key, tensor in part._buffers.items():
            if tensor is None or key in part._non_persistent_buffers_set or not _has_mean(tensor):
                continue
            memory = memory_of(tensor)
            if memory not in seen:
                seen.add(memory)
                yield f"{path}.{key}".lstrip(".").replace(COMPILED, ""), tensor


def _has_mean(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a type that is averaged."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and (tensor.dtype.is_floating_point or tensor.dtype in INTEGERS)
    )


def _check(name: str, tensor: torch.Tensor) -> None:
    """Refuse a buffer without values."""
    if torch.nn.parameter.is_lazy(tensor):
        raise UsageError(f"buffer {name!r} has no shape yet: run the model once before")
    if tensor.is_meta:
        raise UsageError(f"buffer {name!r} is on the meta device and has no values")


def _describe(name: str, tensor: torch.Tensor) -> BufferTensor:
    kind = "float" if tensor.dtype.is_floating_point else str(tensor.dtype)
    return BufferTensor(name, tuple(tensor.shape), kind)


def _concatenate(tensors: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Concatenate all values on the host; if all are on one device, with one transfer."""
    flat = [tensor.reshape(-1).to(dtype) for tensor in tensors]
    if len({tensor.device for tensor in flat}) == 1:
        return torch.cat(flat).cpu()
    return torch.cat([torch.empty(0, dtype=dtype), *(tensor.cpu() for tensor in flat)])
