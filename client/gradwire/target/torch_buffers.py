"""`TorchBuffers`: the buffers of a torch module that are state of its training.

Running statistics are averaged: those that go by the names that torch's norm layers give them, and
what a script says. Of all others every worker has those of one worker, as with DDP: a permutation,
the vectors of a power iteration or a mask has no mean.

Each call looks them up in the module, because ``load_state_dict(assign=True)`` and
``module.to(...)`` replace the tensors. Left alone are buffers with ``persistent=False``, which are
no state; complex, sparse and quantized tensors; and buffers registered after the session began.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from gradwire.errors import UsageError
from gradwire.target.module_tree import COMPILED, check_values, memory_of, unwrapped
from gradwire_protocol.messages.buffers.layout import (
    TRUTH,
    WIDTHS,
    BufferLayout,
    BufferTensor,
    BufferValues,
    dtype_of,
)

STATISTICS: Final = frozenset({"running_mean", "running_var", "num_batches_tracked"})

INTEGERS: Final = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
"""Types whose values all fit int64; torch has few operations for larger ones."""

TYPES: Final = {
    torch.bool: TRUTH,
    torch.float64: "F64",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
}
"""Types of what is not averaged; all other floating point types travel as float32."""


class TorchBuffers:
    """Named buffers, read and written in place.

    Parameters
    ----------
    module : Module
    averaged : sequence of str
        Names of buffers that are averaged, besides running statistics; ``*`` stands for any
        characters.
    """

    def __init__(self, module: torch.nn.Module, averaged: Sequence[str] = ()) -> None:
        self._module = module
        found = dict(_shared(module))
        for name, tensor in found.items():
            check_values("buffer", name, tensor)
        for pattern in averaged:
            if not any(fnmatchcase(name, pattern) for name in found):
                raise UsageError(
                    f"averaged_buffers={pattern!r} names no buffer of the module; there are "
                    f"{', '.join(list(found)[:10]) or 'none'}"
                )
            if pattern in found and not _may_be_averaged(found[pattern]):
                raise UsageError(
                    f"averaged_buffers={pattern!r} names a buffer of {found[pattern].dtype}, "
                    "whose values have no mean: leave it out, and all workers have those of one"
                )
        has_mean = {
            name
            for name, tensor in found.items()
            if _may_be_averaged(tensor)
            and (
                name.rpartition(".")[2] in STATISTICS
                or any(fnmatchcase(name, pattern) for pattern in averaged)
            )
        }
        self._floats = [n for n in found if n in has_mean and found[n].dtype.is_floating_point]
        self._integers = [n for n in found if n in has_mean and n not in self._floats]
        self._others = [name for name in found if name not in has_mean]
        is_wide = any(found[name].dtype == torch.float64 for name in self._floats)
        self._float_type = torch.float64 if is_wide else torch.float32
        self.layout = BufferLayout(
            tuple(_describe(name, found[name]) for name in self._floats),
            tuple(_describe(name, found[name]) for name in self._integers),
            8 if is_wide else 4,
            tuple(_describe_other(name, found[name]) for name in self._others),
        )

    @torch.no_grad()
    def read(self) -> BufferValues:
        """Return a copy of the values, in the memory of the host."""
        found = self._current()
        floats = _concatenate([found[name] for name in self._floats], self._float_type)
        integers = _concatenate([found[name] for name in self._integers], torch.int64)
        parts = [_bytes_of(found[name]) for name in self._others]
        others = np.concatenate([np.zeros(0, np.uint8), *parts])
        return BufferValues(floats.numpy(), integers.numpy(), others)

    @torch.no_grad()
    def write(self, values: BufferValues) -> None:
        """Set the buffers that have other values; do not touch the others.

        A backward pass that still needs a buffer would fail if that were written to. So a mask,
        say, which has the same values at all workers, stays usable.
        """
        found, present = self._current(), self.read()
        pairs = zip(self.layout.parts(values), self.layout.parts(present), strict=True)
        for (described, given), (_, had) in pairs:
            if not np.array_equal(given, had):
                found[described.name].copy_(_tensor_of(described, given))

    def _current(self) -> dict[str, torch.Tensor]:
        """Return the present tensors; refuse those that differ from the layout."""
        found = dict(_shared(self._module))
        others = set(self._others)
        for described in self.layout.tensors:
            tensor = found.get(described.name)
            if tensor is None:
                raise UsageError(
                    f"buffer {described.name!r} is gone: a session shares the buffers that it "
                    "began with. Register it with persistent=False, or pass share_buffers=False"
                )
            describe = _describe_other if described.name in others else _describe
            if describe(described.name, tensor) != described:
                raise UsageError(
                    f"buffer {described.name!r} changed from {described.type} "
                    f"{described.shape} to {tensor.dtype} {tuple(tensor.shape)}; a session "
                    "shares the buffers that it began with. Register it with persistent=False, "
                    "or pass share_buffers=False"
                )
        return found


class KeptBuffers:
    """The buffers of a module that takes those of a file."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._found = dict(_shared(module))

    def missing_in(self, kept: Mapping[str, npt.NDArray[Any]]) -> list[str]:
        """Return the names of those that a file does not have.

        `UsageError` if one has another shape there.
        """
        for name, tensor in self._found.items():
            if name in kept and kept[name].shape != tuple(tensor.shape):
                raise UsageError(
                    f"buffer {name!r} has shape {tuple(tensor.shape)} in the model, and "
                    f"{kept[name].shape} in the checkpoint"
                )
        return [name for name, tensor in self._found.items() if name not in kept and tensor.numel()]

    @torch.no_grad()
    def write_kept(self, kept: Mapping[str, npt.NDArray[Any]]) -> list[str]:
        """Set those that a file has; return their names."""
        written = [name for name in self._found if name in kept]
        for name in written:
            array = kept[name]
            native = array.astype(array.dtype.newbyteorder("="))
            self._found[name].copy_(torch.from_numpy(native))
        return written


def _shared(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterate over the buffers that are shared, each once, with its first name."""
    seen: set[object] = set()
    for path, part in unwrapped(module).named_modules():
        for key, tensor in part._buffers.items():
            if tensor is None or key in part._non_persistent_buffers_set or not _is_plain(tensor):
                continue
            memory = memory_of(tensor)
            if memory not in seen:
                seen.add(memory)
                yield f"{path}.{key}".lstrip(".").replace(COMPILED, ""), tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has values that travel."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and (tensor.dtype.is_floating_point or tensor.dtype in TYPES)
    )


def _may_be_averaged(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has values that can be averaged."""
    return tensor.dtype.is_floating_point or tensor.dtype in INTEGERS


def _describe(name: str, tensor: torch.Tensor) -> BufferTensor:
    kind = "float" if tensor.dtype.is_floating_point else str(tensor.dtype)
    return BufferTensor(name, tuple(tensor.shape), kind)


def _describe_other(name: str, tensor: torch.Tensor) -> BufferTensor:
    return BufferTensor(name, tuple(tensor.shape), TYPES.get(tensor.dtype, "F32"))


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a buffer that is not averaged."""
    if tensor.dtype not in TYPES:
        tensor = tensor.to(torch.float32)
    array = tensor.numpy(force=True).reshape(-1)
    if tensor.dtype == torch.bool:
        return np.packbits(array)
    return np.frombuffer(array.astype(array.dtype.newbyteorder("<")).tobytes(), np.uint8)


def _tensor_of(described: BufferTensor, given: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor of the values of one buffer, as `BufferLayout.parts` has them."""
    if described.type == TRUTH:
        given = np.unpackbits(given, count=described.elements).astype(bool)
    elif described.type in WIDTHS:
        dtype = dtype_of(described.type)
        given = np.frombuffer(given.tobytes(), dtype).astype(dtype.newbyteorder("="))
    # A copy: torch warns of arrays that cannot be written to, as received ones.
    return torch.from_numpy(given.copy()).view(described.shape)


def _concatenate(tensors: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Concatenate all values on the host; if all are on one device, with one transfer."""
    flat = [tensor.reshape(-1).to(dtype) for tensor in tensors]
    if len({tensor.device for tensor in flat}) == 1:
        return torch.cat(flat).cpu()
    return torch.cat([torch.empty(0, dtype=dtype), *(tensor.cpu() for tensor in flat)])
