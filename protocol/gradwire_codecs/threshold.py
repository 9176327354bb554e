"""The threshold pass: find the elements whose residual has reached the threshold.

The residual of element ``i`` is ``d = parameters[i] - values[i] * quantum``, plus what waits in
a separate residual vector where there is one. An element with ``|d| >= tau`` is a hit and sends
``c = trunc(d / tau)`` whole thresholds, at most `magnitude_max` of them [1]_.

The pass reads two (or three) vectors and writes none, so that a NaN found in the last element
leaves everything as it was. It works in blocks: one loop without branches, which the compiler
turns into vector instructions, marks the hits of a block; a second one looks at the marks eight
at a time and handles the few elements that are hits. A NaN fails ``|d| < tau`` like a hit does,
so it is found without a test of its own on the others.

References
----------
.. [1] N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
   Interspeech 2015, doi:10.21437/Interspeech.2015-354.
"""

import math
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int32Array, UInt8Array, UInt32Array
from gradwire_codecs.compiled import compiled

BLOCK: Final = 2048
"""Elements marked at a time: 2 KiB of marks and 16 KiB of input stay in the first-level cache."""

NOT_FINITE: Final = -1
OUT_OF_RANGE: Final = -2
"""Results of `scan` in place of a number of hits; the second result then names the element."""


@compiled
def _residual(
    parameters: Float32Array,
    waiting: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    i: int,
) -> np.float32:
    d: np.float32 = parameters[i] - np.float32(values[i]) * quantum
    if waiting.size:
        d += waiting[i]
    return d


@compiled
def _mark(
    parameters: Float32Array,
    waiting: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    tau: np.float32,
    low: int,
    n: int,
    marks: UInt8Array,
) -> None:
    """Set ``marks[j]`` to whether element ``low + j`` is a hit or not finite."""
    p = parameters[low : low + n]
    s = values[low : low + n]
    if waiting.size:
        r = waiting[low : low + n]
        for j in range(n):
            d = (p[j] - np.float32(s[j]) * quantum) + r[j]
            marks[j] = 0 if abs(d) < tau else 1
    else:
        for j in range(n):
            d = p[j] - np.float32(s[j]) * quantum
            marks[j] = 0 if abs(d) < tau else 1
    for j in range(n, (n + 7) // 8 * 8):
        marks[j] = 0


@compiled
def scan(
    parameters: Float32Array,
    waiting: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    multiple: int,
    magnitude_max: int,
    start: int,
    stop: int,
    index: UInt32Array,
    count: Int32Array,
) -> tuple[int, int]:
    """Find the hits in ``start <= i < stop``, ascending.

    Parameters
    ----------
    parameters : ndarray of shape (N,), dtype float32
    waiting : ndarray of shape (N,) or (0,), dtype float32
        The residual kept apart from the parameters; empty where there is none.
    values : ndarray of shape (N,), dtype int32
        The replica.
    quantum : float32
        Value of one unit of the replica, a power of two.
    multiple : int
        The threshold in quanta, 1 to 2^24: the product with `quantum` is exact in float32.
    magnitude_max : int
        Most thresholds that one element sends; what is above stays in the residual.
    start, stop : int
        The range to look at.
    index, count : ndarray of shape (capacity,), dtypes uint32 and int32
        Filled with the position and the signed number of thresholds of each hit, as far as
        they reach; the pass goes on counting and checking behind their end.

    Returns
    -------
    hits : int
        Number of hits, which may exceed the capacity; or `NOT_FINITE` or `OUT_OF_RANGE`.
    element : int
        With the latter two, the element at fault; else -1.
    """
    tau = np.float32(multiple) * quantum
    limit = 2.0**31 * np.float64(quantum)
    marks = np.empty(BLOCK, np.uint8)
    words = marks.view(np.uint64)
    hits = 0
    for low in range(start, stop, BLOCK):
        n = min(BLOCK, stop - low)
        _mark(parameters, waiting, values, quantum, tau, low, n, marks)
        for w in range((n + 7) // 8):
            if words[w] == 0:
                continue
            for j in range(8 * w, 8 * w + 8):
                if marks[j] == 0:
                    continue
                i = low + j
                d = _residual(parameters, waiting, values, quantum, i)
                if not math.isfinite(d):
                    return NOT_FINITE, i
                # The replica moves towards this and never past it, so it stays in range too.
                target = np.float64(values[i]) * np.float64(quantum) + np.float64(d)
                if abs(target) >= limit:
                    return OUT_OF_RANGE, i
                c = math.trunc(np.float64(d) / np.float64(tau))
                c = min(max(c, -magnitude_max), magnitude_max)
                if hits < index.size:
                    index[hits] = i
                    count[hits] = c
                hits += 1
    return hits, -1
