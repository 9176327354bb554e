"""`TorchParameters`: torch tensors as one flat float32 vector.

Where possible, parameters are moved into one block of memory: their `data` becomes a part of it.
They stay the same objects, so optimizers and modules notice nothing, and neither encoding nor
applying copies anything. With all tensors on one GPU the block is in its memory, and so is what
looks for what is to be sent.

Each parameter has a storage of its own over its part of the block. Views of one storage would not
do: `torch.save` writes the whole storage of a tensor, and safetensors and what builds on it takes
tensors of one storage for tied ones, of which it writes one. Memory that somebody moves, as
`share_memory` does, is that of one parameter, which is then copied.

Other tensors are copied back and forth: those on another device than the block, of another dtype,
or with memory that something else may use too, as that of any tensor that is no
`torch.nn.Parameter`. `gather` adds a tensor's change since the last time to the vector instead of
copying its value, so rounding to its dtype never gets into the vector. There, changes of peers add
up that are too small to show in a tensor of half precision. A change by an optimizer that is
smaller than the tensor's resolution is lost, as it is without gradwire; an optimizer with float32
copies of its own keeps it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from gradwire.errors import UsageError
from gradwire.settings.training import Feedback as FeedbackSetting
from gradwire.target.module_tree import ModuleTree, check_values, memory_of
from gradwire.target.parameters import host_feedback
from gradwire.target.version_counters import VersionCounters
from gradwire_codecs import Feedback, Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.device import DeviceLocalFeedback, DeviceSharedFeedback
from gradwire_protocol.messages.layout import TENSORS_MAX, Layout
from gradwire_protocol.messages.layout import Tensor as TensorLayout

_address: Final[Callable[[torch.Tensor], int]] = torch.Tensor.data_ptr


@dataclass(slots=True)
class _Viewed:
    """A tensor whose memory is part of the flat vector."""

    name: str
    tensor: torch.Tensor
    view: torch.Tensor


@dataclass(slots=True)
class _Copied:
    """A tensor with memory of its own."""

    name: str
    tensor: torch.Tensor
    view: torch.Tensor
    known: torch.Tensor
    """Its last known value, as float32, on the vector's device."""


class TorchParameters:
    """Named tensors, trained in place.

    Parameters
    ----------
    tensors : sequence of (str, Tensor)
        Floating point. Of tensors with the same memory, only the first counts.
    module : Module, optional
        Module of the tensors. `gather` takes over parameter objects that replace others in it, and
        raises where parameters were added or removed.
    """

    def __init__(
        self,
        tensors: Sequence[tuple[str, torch.Tensor]],
        module: torch.nn.Module | None = None,
    ) -> None:
        objects = _distinct(tensors)
        named = _with_memory_of_their_own(objects)
        held_twice = _storages_held_twice([tensor for _, tensor in objects])
        self.layout = layout_of(named)
        self.tensors = [tensor for _, tensor in named]
        """In the order of the layout, as they were at first."""
        device = _device_of([tensor for _, tensor in named])
        self._flat = flat = torch.empty(self.layout.elements, dtype=torch.float32, device=device)
        self._tree = None if module is None else ModuleTree(module, named)
        self._viewed: list[_Viewed] = []
        self._copied: list[_Copied] = []
        at = 0
        with torch.no_grad():
            for name, tensor in named:
                view = flat[at : at + tensor.numel()].view(tensor.shape)
                at += tensor.numel()
                if tensor.numel():
                    view.copy_(tensor)
                    alone = tensor.untyped_storage().data_ptr() not in held_twice
                    self._attach(name, tensor, view, alone=alone)
        self._counters = VersionCounters(flat, [each.elements for each in self.layout.tensors])
        self._changed = True
        self._note_addresses()
        self._counters.note(self._tensors)

    @property
    def on_device(self) -> bool:
        """Whether the vector is in the memory of a device, and the codec works there."""
        return self._flat.device.type != "cpu"

    @property
    def vector(self) -> Float32Array:
        """Shape (N,). A copy where the tensors are on a device."""
        vector: Float32Array = self._flat.numpy(force=True)
        return vector

    def feedback(self, replica: Replica, *, kind: FeedbackSetting) -> Feedback:
        """Return a feedback over the vector, which works on the device that it is on."""
        if not self.on_device:
            return host_feedback(self.vector, replica, kind=kind)
        found = DeviceLocalFeedback if kind == "local" else DeviceSharedFeedback
        return found(self._flat, replica)

    @torch.no_grad()
    def gather(self) -> None:
        """Copy changes of the tensors into the vector.

        `UsageError` if a tensor has another shape than at first.
        """
        if self._tree is not None and not self._tree.is_unchanged():
            self._take_over(self._tree)
        if list(map(_address, self._in_place)) != self._addresses:
            for viewed in [v for v in self._viewed if v.tensor.data_ptr() != v.view.data_ptr()]:
                self._attach_again(viewed, alone=True)
                self._changed = True
            self._note_addresses()
        for copied in self._copied:
            _check_shape(copied)
            value = self._value_of(copied.tensor)
            # No number is the difference from a NaN, so after one the value itself counts.
            changed = copied.view + (value - copied.known)
            copied.view.copy_(torch.where(copied.known.isfinite(), changed, value))
            copied.known = value
        if self._counters.may_have_changed(self._tensors):
            self._changed = True

    def sample(self, parts: Sequence[slice]) -> Float32Array:
        """Return a copy of some elements, of which only these leave the device."""
        sampled: Float32Array = torch.cat([self._flat[part] for part in parts]).numpy(force=True)
        return sampled

    def changed(self) -> bool:
        """Return whether the tensors may have changed since the last call, as `gather` saw it."""
        changed, self._changed = self._changed, False
        return changed

    @torch.no_grad()
    def scatter(self) -> None:
        """Copy changes of the vector into the tensors."""
        for copied in self._copied:
            copied.tensor.copy_(copied.view)
            copied.known = self._value_of(copied.tensor)
        self._counters.note_written(self._tensors)

    @torch.no_grad()
    def set(self, values: Float32Array) -> None:
        """Set the vector and the tensors."""
        self._flat.copy_(torch.from_numpy(values))
        self.scatter()

    @torch.no_grad()
    def take_gradient(self) -> Float32Array | None:
        """Return the gradients of all tensors, 0 for those without, and clear them."""
        held: list[_Viewed | _Copied] = [*self._viewed, *self._copied]
        gradient: torch.Tensor | None = None
        for each in held:
            its, at = each.tensor.grad, each.view.storage_offset()
            if its is not None:
                gradient = torch.zeros_like(self._flat) if gradient is None else gradient
                dense = its if its.layout is torch.strided else its.to_dense()
                gradient[at : at + dense.numel()] = dense.reshape(-1).to(gradient)
                each.tensor.grad = None
        return None if gradient is None else gradient.numpy(force=True)

    def like_target(self, vector: Float32Array) -> torch.Tensor:
        """Return the vector as a tensor of the same memory."""
        return torch.from_numpy(vector)

    def to_array(self, change: Any) -> npt.NDArray[Any]:
        """Return a tensor of any device, or whatever numpy reads, as an array."""
        if isinstance(change, torch.Tensor):
            return change.numpy(force=True)
        return np.asarray(change)

    def _attach(self, name: str, tensor: torch.Tensor, view: torch.Tensor, *, alone: bool) -> None:
        if alone and _can_be_viewed(tensor, self._flat.device):
            # The same memory, as a storage of its own.
            tensor.data = torch.from_dlpack(view)  # type: ignore[attr-defined]
            self._viewed.append(_Viewed(name, tensor, view))
        else:
            self._copied.append(_Copied(name, tensor, view, self._value_of(tensor)))

    def _value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor, as float32 on the vector's device."""
        return tensor.detach().to(self._flat.device, torch.float32, copy=True)

    def _take_over(self, tree: ModuleTree) -> None:
        """Take over parameters that were assigned, as by ``load_state_dict(assign=True)``."""
        held: list[_Viewed | _Copied] = [*self._viewed, *self._copied]
        found = tree.take_over({each.name: each.tensor for each in held})
        for each in held:
            objects = found[each.name]
            if all(each.tensor is not one for one in objects):
                each.tensor = objects[0]
                self._changed = True
            if len(objects) > 1 and isinstance(each, _Viewed):  # several objects share its memory
                self._attach_again(each, alone=False)
        self._note_addresses()

    def _note_addresses(self) -> None:
        """Note the tensors' addresses, so that `gather` finds with one comparison what moved."""
        self._in_place = [viewed.tensor for viewed in self._viewed]
        self._addresses = [viewed.view.data_ptr() for viewed in self._viewed]
        self._tensors = [*self._in_place, *(copied.tensor for copied in self._copied)]

    def _attach_again(self, viewed: _Viewed, *, alone: bool) -> None:
        """Take over a tensor that has other memory now: it was moved, or loaded by assignment."""
        _check_shape(viewed)
        self._viewed.remove(viewed)
        viewed.view.copy_(viewed.tensor)
        self._attach(viewed.name, viewed.tensor, viewed.view, alone=alone)


def trained_of(tensors: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors to train, each once; `UsageError` if one cannot be trained."""
    return _with_memory_of_their_own(_distinct(tensors))


def layout_of(named: Sequence[tuple[str, torch.Tensor]]) -> Layout:
    """Return the layout of a vector of these tensors."""
    return Layout(tuple(TensorLayout(name, tuple(tensor.shape)) for name, tensor in named))


@torch.no_grad()
def write(tensor: torch.Tensor, values: Float32Array) -> None:
    """Set all values of a tensor in place."""
    tensor.copy_(torch.from_numpy(values).view(tensor.shape))


def _distinct(tensors: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return each tensor object once; refuse tensors that cannot be trained."""
    unique: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in tensors:
        unique.setdefault(id(tensor), (name, tensor))
    objects = list(unique.values())
    _check(objects)
    return objects


def _with_memory_of_their_own(
    named: Sequence[tuple[str, torch.Tensor]],
) -> list[tuple[str, torch.Tensor]]:
    """Leave out tensors with the memory of an earlier one: weights tied by their `data`."""
    unique: dict[object, tuple[str, torch.Tensor]] = {}
    for name, tensor in named:
        unique.setdefault(memory_of(tensor), (name, tensor))
    return list(unique.values())


def _storages_held_twice(tensors: Sequence[torch.Tensor]) -> set[int]:
    counts = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors)
    return {pointer for pointer, count in counts.items() if count > 1}


def _check_shape(held: _Viewed | _Copied) -> None:
    if held.tensor.shape != held.view.shape:
        raise UsageError(
            f"parameter {held.name!r} changed its shape from {tuple(held.view.shape)} to "
            f"{tuple(held.tensor.shape)}; a session keeps the shapes it began with"
        )


def _device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the device for the vector: the GPU that has all tensors, else the CPU."""
    devices = {tensor.device for tensor in tensors}
    gpu = devices.pop()
    return torch.device("cpu") if devices or gpu.type != "cuda" else gpu


def _can_be_viewed(tensor: torch.Tensor, device: torch.device) -> bool:
    return (
        isinstance(tensor, torch.nn.Parameter)  # another tensor's memory may be a module's
        and tensor.device == device
        and tensor.dtype == torch.float32
        and tensor.is_contiguous()
        # `is_shared` is true of every tensor on a GPU.
        and not (device.type == "cpu" and tensor.is_shared())  # type: ignore[no-untyped-call]
        and tensor.untyped_storage().nbytes() == 4 * tensor.numel()  # else part of a larger storage
        and tensor.layout is torch.strided
    )


def _check(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    for name, tensor in named:
        if tensor.dtype.is_complex:
            raise UsageError(
                f"parameter {name!r} is complex, of {tensor.dtype}: let the parameter be real, "
                f"torch.view_as_real of it, of shape {(*tensor.shape, 2)}, and use "
                "torch.view_as_complex of that in forward"
            )
        if not tensor.dtype.is_floating_point or tensor.layout is not torch.strided:
            raise UsageError(
                f"parameter {name!r} is a {tensor.layout} tensor of {tensor.dtype}; "
                "dense floating point tensors can be trained"
            )
        check_values("parameter", name, tensor)
        extents = zip(tensor.shape, tensor.stride(), strict=True)
        if any(size > 1 and not stride for size, stride in extents):
            raise UsageError(f"parameter {name!r} is an expanded tensor: pass a copy of its own")
    if not sum(tensor.numel() for _, tensor in named):
        have = f"all of its {len(named)} parameters are empty" if named else "it has no parameters"
        raise UsageError(f"there is nothing to train in this target: {have}")
    if len(named) > TENSORS_MAX:
        raise UsageError(f"{len(named)} parameters; a session takes {TENSORS_MAX} at most")
