"""`SimulatedBuffers`: the buffers of a module that is none, and what must be true of their mean.

They are statistics that move towards what a batch shows, a count of batches, and two numbers of
which nothing is averaged. Whatever is written to the statistics has to lie in the range of what any
worker ever had there, and the two numbers have to be what one worker had; and when a run is
finished, all have the mean of what all had last, and the numbers of the lowest rank.
"""

from collections.abc import Collection, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from gradwire_protocol.messages.buffers.agreement import Standing
from gradwire_protocol.messages.buffers.layout import (
    BufferLayout,
    Buffers,
    BufferTensor,
    BufferValues,
)
from gradwire_server.state.run import Run

ELEMENTS = 5
MOMENTUM = np.float32(0.1)

LAYOUT = BufferLayout(
    (BufferTensor("norm.running_var", (ELEMENTS,), "float"),),
    (BufferTensor("norm.num_batches_tracked", (), "torch.int64"),),
    float_bytes=4,
    others=(BufferTensor("order", (2,), "U32"),),
)


def copy_of(values: BufferValues) -> BufferValues:
    """Return values that do not change with these."""
    return BufferValues(values.floats.copy(), values.integers.copy(), values.others.copy())


class Range:
    """The least and the largest that any worker of a run had, and all orders that any had."""

    def __init__(self) -> None:
        self.low = np.full(ELEMENTS, np.inf, np.float32)
        self.high = np.full(ELEMENTS, -np.inf, np.float32)
        self.batches = 0
        self.orders = set[bytes]()

    def note(self, values: BufferValues) -> None:
        """Note what a worker has."""
        self.low = np.minimum(self.low, values.floats)
        self.high = np.maximum(self.high, values.floats)
        self.batches = max(self.batches, int(values.integers[0]))
        self.orders.add(values.others.tobytes())

    def check(self, values: BufferValues) -> None:
        """Check what a worker is about to have."""
        inside = (self.low <= values.floats) & (values.floats <= self.high)
        assert inside.all(), f"buffers: {values.floats} is not between {self.low} and {self.high}"
        assert 0 <= values.integers[0] <= self.batches, "buffers: more batches than there were"
        assert values.others.tobytes() in self.orders, "buffers: an order that nobody had"


class SimulatedBuffers:
    """What one worker has.

    Parameters
    ----------
    name : str
        Of the worker; with the seed, it determines its batches.
    seed : int
    seen : Range
        Of the run.
    """

    def __init__(self, name: str, seed: int, seen: Range) -> None:
        self.layout = LAYOUT
        self.written = 0
        """How often they were set to a mean."""
        self._seen = seen
        self._random = np.random.default_rng([crc32(name.encode()), seed])
        self._values = BufferValues(
            np.ones(ELEMENTS, np.float32), np.zeros(1, np.int64), self._order()
        )
        seen.note(self._values)

    def train(self) -> None:
        """See a batch."""
        floats, integers, order = self._values
        batch = self._random.gamma(0.5, 10.0 ** np.arange(ELEMENTS)).astype(np.float32)
        moved = (np.float32(1) - MOMENTUM) * floats + MOMENTUM * batch
        order = order if self._random.random() < 0.5 else self._order()
        self._values = BufferValues(moved, integers + 1, order)
        self._seen.note(self._values)

    def _order(self) -> npt.NDArray[np.uint8]:
        """Return two new numbers."""
        return self._random.integers(0, 2**32, 2, np.uint32).astype("<u4").view(np.uint8)

    def read(self) -> BufferValues:
        """Return a copy of what they hold."""
        return copy_of(self._values)

    def write(self, values: BufferValues) -> None:
        """Set them."""
        self._seen.check(values)
        self.written += 1
        self._values = copy_of(values)


def check_the_end(run: Run, buffers: Sequence[SimulatedBuffers], ranks: Collection[int]) -> None:
    """Check what all who have finished have: what follows from what the run has of everyone.

    Parameters
    ----------
    run : Run
    buffers : sequence of SimulatedBuffers
        Of all who have finished, and of observers.
    ranks : collection of int
        Of those who have finished and have any.
    """
    if not buffers:
        return
    missing = set(ranks) - run.buffers.keys()
    assert not missing, f"buffers: those of ranks {missing} are missing"
    last = [Buffers.parse(kept.packed) for _, kept in sorted(run.buffers.items())]
    assert all(each.final for each in last), "buffers: not all are the last ones"
    floats = np.array([np.frombuffer(each.floats, "<f4") for each in last], np.float64)
    order = min(last, key=Standing.of).others
    batches = [np.frombuffer(each.integers, "<i8")[0] for each in last]
    for each in buffers:
        values = each.read()
        assert values.equals(buffers[0].read()), "buffers: they end with different ones"
        error = np.abs(values.floats - floats.mean(axis=0))
        assert (error <= 1e-6 * floats.max(axis=0)).all(), "buffers: they are not the mean"
        assert values.integers[0] == max(batches), "buffers: it is not the largest count"
        assert values.others.tobytes() == order, "buffers: it is not the order of who leads"
