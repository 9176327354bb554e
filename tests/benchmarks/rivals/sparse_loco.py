"""A rival that synchronizes rarely and sends little: SparseLoCo, from its paper and its code.

After `EVERY` steps of a worker's own optimizer, what these have changed is added to an error memory
that decays. The largest entries of each chunk are taken from there and sent with 2 bits each; all
workers go on from where they were before these steps, minus the mean of what was sent. There is no
outer momentum. Chunks are 4,096 elements of a matrix, or 64 of a vector, all of which are sent. A
table of four values for each tensor says what the 2 bits stand for.

The paper divides by the number of workers, its authors' code by how many have sent an element.

References
----------
.. [1] "Communication efficient LLM pre-training with SparseLoCo", arXiv 2508.15706, 2025.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from gradwire_codecs.arrays import Float32Array

EVERY: Final = 30
"""Steps from one synchronization to the next."""
DECAY: Final = 0.95
"""Of the error memory, from one synchronization to the next."""
OUTER_RATE: Final = 1.0

CHUNK: Final = 4096
"""Of a matrix."""
VECTOR_CHUNK: Final = 64
SENT: Final = 64
"""Largest entries of a chunk."""

INDEX_BITS: Final = 12
VALUE_BITS: Final = 2
LEVELS: Final = 2**VALUE_BITS
LEVEL_DEVIATIONS: Final = 1.5
"""Width of a level, in standard deviations of what is sent of a tensor."""

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Sent(NamedTuple):
    """What one worker has sent of a tensor."""

    places: npt.NDArray[np.int64]
    values: Float32Array


class Chunks:
    """How a tensor is cut, packed and read.

    Parameters
    ----------
    shape : sequence of int
    """

    def __init__(self, shape: Sequence[int]) -> None:
        size = int(np.prod(shape))
        chunk = CHUNK if len(shape) > 1 else VECTOR_CHUNK
        self._parts = [(start, min(start + chunk, size)) for start in range(0, size, chunk)]
        self._count = sum(min(SENT, stop - start) for start, stop in self._parts)
        self._index_bits = INDEX_BITS * sum(
            SENT for start, stop in self._parts if stop - start > SENT
        )

    @property
    def bytes(self) -> int:
        """Of what is sent."""
        return 4 * LEVELS + -(-(self._index_bits + VALUE_BITS * self._count) // 8)

    def take(self, memory: Float32Array) -> Bytes:
        """Take out of an error memory what is sent of it; return that, packed.

        Parameters
        ----------
        memory : ndarray of shape (elements,), dtype float32
            Keeps the rest.
        """
        places, bits = [], []
        for start, stop in self._parts:
            if stop - start > SENT:
                largest = np.argpartition(np.abs(memory[start:stop]), -SENT)[-SENT:]
                bits.append(_bits(largest, INDEX_BITS))
            else:
                largest = np.arange(stop - start)
            places.append(start + largest)
        chosen = np.concatenate(places)
        table, levels = quantized(memory[chosen])
        memory[chosen] -= table[levels]
        packed = np.packbits(np.concatenate([*bits, _bits(levels, VALUE_BITS)]))
        return np.concatenate([table.view(np.uint8), packed])

    def read(self, packed: Bytes) -> Sent:
        """Return what `take` has packed."""
        table = packed[: 4 * LEVELS].copy().view(np.float32)
        bits = np.unpackbits(packed[4 * LEVELS :])
        indices = iter(_numbers(bits[: self._index_bits], INDEX_BITS).reshape(-1, SENT))
        levels = _numbers(bits[self._index_bits :][: VALUE_BITS * self._count], VALUE_BITS)
        places = [
            start + (next(indices) if stop - start > SENT else np.arange(stop - start))
            for start, stop in self._parts
        ]
        return Sent(np.concatenate(places), table[levels])


def quantized(values: Float32Array) -> tuple[Float32Array, npt.NDArray[np.int64]]:
    """Return a table of levels, and the level of each value: each stands for the mean of its own.

    Parameters
    ----------
    values : ndarray of shape (n,), dtype float32

    Returns
    -------
    ndarray of shape (4,), dtype float32
    ndarray of shape (n,), dtype int64
    """
    width = LEVEL_DEVIATIONS * float(values.std()) or 1.0
    places = np.floor((values - values.mean()) / width) + LEVELS // 2
    levels = np.nan_to_num(np.clip(places, 0, LEVELS - 1)).astype(np.int64)
    sums = np.bincount(levels, values, LEVELS)
    counts = np.bincount(levels, minlength=LEVELS)
    return (sums / np.maximum(counts, 1)).astype(np.float32), levels


def _bits(numbers: npt.NDArray[np.int64], width: int) -> Bytes:
    return ((numbers[:, None] >> np.arange(width)) & 1).astype(np.uint8).ravel()


def _numbers(bits: Bytes, width: int) -> npt.NDArray[np.int64]:
    return bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width))


def mean_of(sent: Sequence[Sent], elements: int, *, over_senders: bool) -> Float32Array:
    """Return the mean of what workers have sent of a tensor: over all, or over those who did."""
    total = np.zeros(elements, np.float32)
    senders = np.zeros(elements, np.float32)
    for places, values in sent:  # nobody sends an element twice
        total[places] += values
        senders[places] += 1
    total /= np.maximum(senders, 1) if over_senders else len(sent)
    return total


@contextmanager
def sparse_loco(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: str,
    begin: Callable[[], None],
    outcome: dict[str, Any],
    *,
    over_senders: bool,
) -> Iterator[tuple[nn.Module, Callable[[], None]]]:
    """Share a model among the processes of torch's default group, which is gloo's.

    Parameters
    ----------
    model : nn.Module
        The same in all processes.
    optimizer : torch.optim.Optimizer
        The inner one.
    run : str
    begin : callable
        Called when all is set up.
    outcome : dict
        Gets nothing.
    over_senders : bool
        Whether an element is divided by how many have sent it, and not by the number of workers.

    Yields
    ------
    nn.Module
        The model to train.
    callable
        What follows the optimizer's step.
    """
    parameters = [parameter.detach() for parameter in model.parameters()]
    vectors = [parameter.view(-1).numpy() for parameter in parameters]
    chunks = [Chunks(parameter.shape) for parameter in parameters]
    starts = [vector.copy() for vector in vectors]
    memories = [np.zeros_like(vector) for vector in vectors]
    ends = np.cumsum([each.bytes for each in chunks])
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps % EVERY:
            return
        packed = []
        for memory, start, vector, each in zip(memories, starts, vectors, chunks, strict=True):
            memory *= DECAY
            memory += start - vector
            packed.append(each.take(memory))
        mine = torch.from_numpy(np.concatenate(packed))
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine)
        parts = [np.split(one.numpy(), ends[:-1]) for one in gathered]
        for i, (start, vector, each) in enumerate(zip(starts, vectors, chunks, strict=True)):
            sent = [each.read(part[i]) for part in parts]
            start -= OUTER_RATE * mean_of(sent, len(start), over_senders=over_senders)
            vector[:] = start

    begin()
    yield model, step
