"""Dense contributions: every element of a range becomes the nearest number of thresholds.

These are taken out of the residual, and the replica stays as it is. A count times the threshold is
exact in float64, so what is left of an element is rounded once.
"""

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int8Array, Int32Array
from gradwire_codecs.kernels.compiled import dividing, inlined
from gradwire_codecs.kernels.lattice import BLOCK, max_magnitude_bits


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
    ahead = np.empty(BLOCK, np.float32)
    bits = ahead.view(np.int32)
    for low in range(0, parameters.size, BLOCK):
        high = min(low + BLOCK, parameters.size)
        p, s = parameters[low:high], values[low:high]
        for i in range(high - low):
            ahead[i] = p[i] - np.float32(s[i]) * quantum
        for i in range(high - low):
            top = max(top, bits[i] & np.int32(0x7FFFFFFF))
    return top
