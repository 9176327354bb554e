"""`ModuleBuffers`: what a module has besides its parameters, such as the statistics of BatchNorm.

They are not trained, so they do not go through the threshold. Now and then every worker sends the
exact values of its buffers, and sets them to what all workers have agreed on, which
`gradwire_protocol.messages.buffers.agreement` computes. `features.buffers` does so at the steps
where it is due, `worker.buffers` keeps received values, and `torch_buffers` reads and writes the
buffers of a module.
"""

from typing import Protocol

import numpy as np

from gradwire.errors import NonFiniteError, UsageError
from gradwire_protocol.limits import BUFFER_LAYOUT_BYTES_MAX, BUFFERS_BYTES_MAX
from gradwire_protocol.messages.buffers.layout import BufferLayout, Buffers, BufferValues


class ModuleBuffers(Protocol):
    """The buffers of a module, on any device."""

    layout: BufferLayout

    def read(self) -> BufferValues:
        """Return a copy of the values.

        `UsageError` if a buffer is gone, or has another shape or type than at first.
        """

    def write(self, values: BufferValues) -> None:
        """Set the buffers that have other values."""


def check_size(layout: BufferLayout) -> None:
    """Refuse buffers too large for a message; `UsageError` names the largest ones."""
    size, described = sum(layout.sizes), len(layout.packed)
    tensors = sorted(layout.tensors, key=lambda each: -each.elements)
    if described > BUFFER_LAYOUT_BYTES_MAX:
        raise UsageError(
            f"the names and shapes of the {len(tensors)} buffers of the module take {described} "
            f"bytes; the limit is {BUFFER_LAYOUT_BYTES_MAX}: pass share_buffers=False"
        )
    if size + described <= BUFFERS_BYTES_MAX:
        return
    largest = ", ".join(f"{each.name!r} {each.shape}" for each in tensors[:3])
    raise UsageError(
        f"the {len(tensors)} buffers of the module take {size + described} bytes; the limit is "
        f"{BUFFERS_BYTES_MAX}. The largest are {largest}. Register buffers that are no "
        "state of the training with persistent=False: these are not shared. Or pass "
        "share_buffers=False to share none"
    )


def check_finite(layout: BufferLayout, values: BufferValues) -> None:
    """Refuse values without a mean; `NonFiniteError` names the buffer and its value."""
    if np.isfinite(values.floats).all():
        return
    for tensor, part in layout.parts(values):
        finite = np.isfinite(part)
        if not finite.all():
            at = int(np.argmin(finite))
            place = tuple(int(i) for i in np.unravel_index(at, tensor.shape or (1,)))
            where = f"{tensor.name}{list(place) if tensor.shape else ''}"
            raise NonFiniteError(f"buffer {where} is {part[at]}; nothing was sent")
    raise AssertionError("there are as many values as the layout has")


def first_buffers(buffers: ModuleBuffers, rank: int) -> Buffers:
    """Return the message with which the first worker of a run begins.

    `NonFiniteError` if a buffer has no mean.
    """
    values = buffers.read()
    check_finite(buffers.layout, values)
    return buffers.layout.pack_values(rank, values, final=False)


def differing(layout: BufferLayout, one: BufferValues, other: BufferValues) -> list[str]:
    """Return the names of the buffers that have other values."""
    pairs = zip(layout.parts(one), layout.parts(other), strict=True)
    return [tensor.name for (tensor, a), (_, b) in pairs if not np.array_equal(a, b)]
