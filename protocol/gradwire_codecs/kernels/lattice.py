"""The compiled loops that move changes between parameters, residual and replica.

Element i of the replica is worth ``values[i] * quantum``, rounded to float32. The loops share these
arguments: `parameters`, of shape (N,), dtype float32; `stored`, the residual if it has a vector of
its own, of shape (N,), else (0,), dtype float32; `values`, the replica, of shape (N,), dtype int32;
`index`, dtype uint32, and `change`, dtype int32, positions of hits and their changes in quanta.

`take_stored` and `take_ahead` are for dense contributions: every element of a range becomes the
nearest number of thresholds. These are taken out of the residual, and the replica stays as it is. A
count times the threshold is exact in float64, so what is left of an element is rounded once.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int8Array, Int32Array, UInt32Array
from gradwire_codecs.kernels.compiled import bits_of, compiled, dividing, inlined

BLOCK: Final = 1024
"""Elements that stay in the first-level cache from one loop over them to the next."""


@compiled
def max_magnitude_bits(vector: Float32Array, start: int, stop: int) -> np.int32:
    """Return the largest magnitude of a range, as the bits of its float32.

    As integers, these bits have the order of the numbers, with infinity and NaN above all others.
    """
    part = vector[start:stop]
    top = np.int32(0)
    for i in range(part.size):
        top = max(top, bits_of(part[i]) & np.int32(0x7FFFFFFF))
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
    """Move what the optimizer has changed in a range from the parameters to `stored`.

    Return `max_magnitude_bits` of `stored` in the range.
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
    """Move hits from `stored` to replica and parameters."""
    for j in range(index.size):
        i = index[j]
        stored[i] = np.float32(np.float64(stored[i]) - np.float64(change[j]) * np.float64(quantum))
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))
        parameters[i] = np.float32(values[i]) * quantum


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
        # The parameter stays as far from the replica as it was. Adding the change to it would
        # round, and the rounding error would count as a change of our own: it would add up in the
        # residual of every worker and be sent against the peer's change.
        parameters[i] = np.float32(values[i]) * quantum + (parameters[i] - old)


@compiled
def add_to_replica(values: Int32Array, index: UInt32Array, change: Int32Array) -> None:
    """Add a change to a replica."""
    for j in range(index.size):
        i = index[j]
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))


@compiled
def add_counts_to_both(
    parameters: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    counts: Int8Array,
    multiple: int,
) -> None:
    """Do what `add_to_both` does, by a count for each element of a range; 0 changes nothing."""
    factor = np.int32(multiple)
    for i in range(counts.size):
        old = values[i]
        new = np.int32(old + np.int32(np.int32(counts[i]) * factor))
        moved = np.float32(new) * quantum + (parameters[i] - np.float32(old) * quantum)
        values[i] = new
        parameters[i] = moved if counts[i] != 0 else parameters[i]


@compiled
def add_counts_to_replica(values: Int32Array, counts: Int8Array, multiple: int) -> None:
    """Do what `add_to_replica` does, by a count for each element of a range."""
    factor = np.int32(multiple)
    for i in range(counts.size):
        values[i] = np.int32(values[i] + np.int32(np.int32(counts[i]) * factor))


@compiled
def read_residual(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    into: Float32Array,
) -> None:
    """Write the residual to `into`, of shape (N,), dtype float32."""
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
    """Add to the parameters `factor` times the growth of the residual since `before`."""
    if stored.size:
        for i in range(before.size):
            now = (parameters[i] - np.float32(values[i]) * quantum) + stored[i]
            parameters[i] += (now - before[i]) * factor
    else:
        for i in range(before.size):
            now = parameters[i] - np.float32(values[i]) * quantum
            parameters[i] += (now - before[i]) * factor


@inlined
def _count_of(d: np.float32, tau: np.float32, most: np.float32) -> np.float32:
    nearest: np.float32 = max(min(np.rint(d / tau), most), -most)
    return nearest


@inlined
def _left_of(d: np.float32, count: np.float32, tau: np.float32) -> np.float32:
    return np.float32(np.float64(d) - np.float64(count) * np.float64(tau))


@dividing
def take_stored(
    stored: Float32Array, tau: np.float32, most: np.float32, counts: Int8Array
) -> np.int32:
    """Take counts out of a range of a residual that has a vector of its own.

    Parameters
    ----------
    stored : ndarray of shape (n,), dtype float32
    tau : float32
        The threshold.
    most : float32
        Largest count, 127 or less.
    counts : ndarray of shape (n,), dtype int8
        Filled.

    Returns
    -------
    int32
        `max_magnitude_bits` of what is left.
    """
    top = np.int32(0)
    for low in range(0, stored.size, BLOCK):
        high = min(low + BLOCK, stored.size)
        r, c = stored[low:high], counts[low:high]
        for i in range(high - low):
            count = _count_of(r[i], tau, most)
            c[i] = np.int8(count)
            r[i] = _left_of(r[i], count, tau)
        top = max(top, max_magnitude_bits(stored, low, high))
    return top


@dividing
def take_ahead(
    parameters: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    tau: np.float32,
    most: np.float32,
    counts: Int8Array,
) -> None:
    """Take counts out of a range of parameters that contain the residual; else as `take_stored`."""
    for i in range(counts.size):
        shared = np.float32(values[i]) * quantum
        d = parameters[i] - shared
        count = _count_of(d, tau, most)
        counts[i] = np.int8(count)
        parameters[i] = shared + _left_of(d, count, tau)


@dividing
def max_ahead_bits(parameters: Float32Array, values: Int32Array, quantum: np.float32) -> np.int32:
    """Return the largest distance of a parameter from the replica, as `max_magnitude_bits` does."""
    top = np.int32(0)
    for i in range(parameters.size):
        d = parameters[i] - np.float32(values[i]) * quantum
        top = max(top, bits_of(d) & np.int32(0x7FFFFFFF))
    return top
