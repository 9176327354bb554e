"""The compiled loops in which a change moves between parameters, residual and replica.

Element i of the replica stands for ``values[i] * quantum``, rounded to float32, here as everywhere.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int32Array, UInt32Array
from gradwire_codecs.kernels.compiled import compiled

BLOCK: Final = 1024
"""Elements that stay in the first-level cache between one loop over them and the next."""


@compiled
def max_magnitude_bits(vector: Float32Array, start: int, stop: int) -> np.int32:
    """Return the largest magnitude of some elements, as the bits of its float32.

    As integers they have the same order, with infinity and NaN above all numbers.
    """
    bits = vector[start:stop].view(np.int32)
    top = np.int32(0)
    for i in range(bits.size):
        top = max(top, bits[i] & np.int32(0x7FFFFFFF))
    return top


@compiled
def absorb(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    start: int,
    stop: int,
) -> np.int32:
    """Move what the optimizer changed from some parameters to the residual.

    Returns what `max_magnitude_bits` does for the residual there.
    """
    top = np.int32(0)
    for low in range(start, stop, BLOCK):
        high = min(low + BLOCK, stop)
        p, r, s = parameters[low:high], stored[low:high], values[low:high]
        for i in range(high - low):
            shared = np.float32(s[i]) * quantum
            r[i] = (p[i] - shared) + r[i]
            p[i] = shared
        top = max(top, max_magnitude_bits(stored, low, high))
    return top


@compiled
def commit_stored(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    index: UInt32Array,
    change: Int32Array,
) -> None:
    """Take the hits out of the residual, and put them into replica and parameters."""
    for j in range(index.size):
        i = index[j]
        stored[i] = np.float32(np.float64(stored[i]) - np.float64(change[j]) * np.float64(quantum))
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))
        parameters[i] = np.float32(values[i]) * quantum


@compiled
def commit_partial(
    parameters: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    portion: np.float32,
    index: UInt32Array,
    change: Int32Array,
) -> None:
    """Take hits out of a residual of which the parameters contain a portion; put them into both."""
    for j in range(index.size):
        i = index[j]
        ahead = parameters[i] - np.float32(values[i]) * quantum
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))
        sent = np.float64(change[j]) * np.float64(quantum)
        left = np.float64(ahead) - np.float64(portion) * sent
        parameters[i] = np.float32(np.float64(values[i]) * np.float64(quantum) + left)


@compiled
def add_to_both(
    parameters: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    index: UInt32Array,
    change: Int32Array,
) -> None:
    """Add a peer's change to replica and parameters."""
    for j in range(index.size):
        i = index[j]
        old = np.float32(values[i]) * quantum
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))
        # What the parameter was ahead of the replica it stays ahead. Adding the change to it would
        # round, and what rounding takes away would look like a change of our own: it would gather
        # in the residual of every worker and be sent back against the peer.
        parameters[i] = np.float32(values[i]) * quantum + (parameters[i] - old)


@compiled
def add_to_replica(values: Int32Array, index: UInt32Array, change: Int32Array) -> None:
    """Add a change to a replica."""
    for j in range(index.size):
        i = index[j]
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))


@compiled
def clip(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    limit: np.float32,
) -> tuple[int, float]:
    """Cut the residual to `limit`; return how many elements, and how much."""
    elements = 0
    magnitude = 0.0
    for i in range(values.size):
        shared = np.float32(values[i]) * quantum
        before = parameters[i] - shared
        if stored.size:
            before += stored[i]
        if not abs(before) > limit:
            continue
        cut = np.float32(limit) if before > 0 else -np.float32(limit)
        if stored.size:
            parameters[i] = shared
            stored[i] = cut
        else:
            cut += shared
            parameters[i] = cut
            cut -= shared  # what is there now: the sum was rounded
        elements += 1
        magnitude += abs(np.float64(before) - np.float64(cut))
    return elements, magnitude


@compiled
def read_residual(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    into: Float32Array,
) -> None:
    """Write the residual to `into`, of the same length."""
    if stored.size:
        for i in range(into.size):
            into[i] = (parameters[i] - np.float32(values[i]) * quantum) + stored[i]
    else:
        for i in range(into.size):
            into[i] = parameters[i] - np.float32(values[i]) * quantum


@compiled
def add_growth(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    before: Float32Array,
    factor: np.float32,
) -> None:
    """Add to the parameters, times `factor`, what the residual has grown by since `before`."""
    if stored.size:
        for i in range(before.size):
            now = (parameters[i] - np.float32(values[i]) * quantum) + stored[i]
            parameters[i] += (now - before[i]) * factor
    else:
        for i in range(before.size):
            now = parameters[i] - np.float32(values[i]) * quantum
            parameters[i] += (now - before[i]) * factor
