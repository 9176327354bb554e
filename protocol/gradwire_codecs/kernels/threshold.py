"""The threshold pass: find the elements whose residual has reached the threshold.

The residual of element ``i`` is ``d = parameters[i] - values[i] * quantum``, plus ``stored[i]`` if
the residual has a vector of its own. An element with ``|d| >= tau`` is a hit and sends
``c = trunc(d / tau)`` whole thresholds, at most `magnitude_max` of them [1]_.

The pass reads two (or three) vectors. With `stored` it writes none, so that a NaN in the last
element leaves everything as it was; moving to `stored` what the optimizer has changed is done in
the same pass only if no element can be at fault. Without `stored`, the pass can add hits to the
replica while their block is in the cache. That is exact, and can be undone if a later element is at
fault.

The pass is bound by memory: 64 comparisons at a time become the bits of one word, and most words
are 0. The set bits of the others are read four at a time, so that no branch depends on how many
there are. A loop over the hits of a block counts the thresholds of each hit while its elements are
still in the first-level cache. A NaN fails ``|d| < tau`` like a hit, so it takes no test of its
own.

References
----------
.. [1] N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
   Interspeech 2015, doi:10.21437/Interspeech.2015-354.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

from gradwire_codecs.arrays import Float32Array, Int32Array, Int64Array, UInt32Array
from gradwire_codecs.kernels.compiled import (
    compiled,
    inlined,
    instruction,
    internal,
    trailing_zeros,
)
from gradwire_codecs.kernels.lattice import BLOCK, absorb

LANES: Final = 64
"""Elements compared at a time; the compiler divides them into the vectors of the machine."""

UNROLLED: Final = 4
"""Set bits read at a time. With 5 % hits a word has 3.2."""

SLACK: Final = BLOCK + UNROLLED
"""Room after the capacity: when the buffers are full, the hits of a block are still counted
there."""

CHUNK: Final = 2**15
"""Elements whose hits are counted together, to cut a vector into ranges with few enough hits."""

NOT_FINITE: Final = -1
OUT_OF_RANGE: Final = -2
"""Results of `scan` instead of a number of hits; the second result is then the element."""

_FLOATS: Final = ir.VectorType(ir.FloatType(), LANES)
_INTEGERS: Final = ir.VectorType(ir.IntType(32), LANES)
_WORD: Final = ir.IntType(64)


def _load(context: Any, builder: ir.IRBuilder, type_: Any, array: Any, first: Any) -> Any:
    """Load elements from `first` on; a vector needs no more alignment than an element."""
    vector = _INTEGERS if type_.dtype == types.int32 else _FLOATS
    place = builder.gep(context.make_array(type_)(context, builder, array).data, [first])
    loaded = builder.load(builder.bitcast(place, vector.as_pointer()))
    loaded.align = 4
    return loaded


def _spread(builder: ir.IRBuilder, scalar: Any) -> Any:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    lane = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(lane, nothing, ir.Constant(_INTEGERS, [0] * LANES))


def _typed_marks(_: Any, parameters: Any, stored: Any, values: Any, first: Any, quantum: Any,
                 tau: Any) -> tuple[Any, Callable[..., Any]]:  # fmt: skip
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        of_parameters, of_stored, of_values = signature.args[:3]
        parameters, stored, values, first, quantum, tau = given
        shared = builder.sitofp(_load(context, builder, of_values, values, first), _FLOATS)
        shared = builder.fmul(shared, _spread(builder, quantum))
        d = builder.fsub(_load(context, builder, of_parameters, parameters, first), shared)
        if of_stored != types.none:
            d = builder.fadd(d, _load(context, builder, of_stored, stored, first))
        fabs = builder.module.declare_intrinsic(
            f"llvm.fabs.v{LANES}f32", (), ir.FunctionType(_FLOATS, [_FLOATS])
        )
        reached = builder.fcmp_unordered(">=", builder.call(fabs, [d]), _spread(builder, tau))
        return builder.bitcast(reached, _WORD)

    return types.uint64(parameters, stored, values, types.int64, quantum, tau), emit


def _typed_ones(_: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    def emit(_context: Any, builder: ir.IRBuilder, _signature: Any, given: Any) -> Any:
        return builder.ctpop(given[0])

    return types.int64(word), emit


_marks: Callable[
    [Float32Array, Float32Array | None, Int32Array, int, np.float32, np.float32], np.uint64
] = instruction(_typed_marks)
"""Bit ``k`` of the result is set if element ``first + k`` is a hit or not finite."""

_ones: Callable[[np.uint64], int] = instruction(_typed_ones)
"""The number of set bits."""


@inlined
def _residual(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    i: int,
) -> np.float32:
    d: np.float32 = parameters[i] - np.float32(values[i]) * quantum
    if stored.size:
        d += stored[i]
    return d


@inlined
def _find(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    tau: np.float32,
    low: int,
    high: int,
    index: UInt32Array,
    found: int,
) -> int:
    """Write hits from ``index[found]`` on, and garbage after them; return where the hits end."""
    whole = low + (high - low) // LANES * LANES
    for first in range(low, whole, LANES):
        if stored.size:
            marks = _marks(parameters, stored, values, first, quantum, tau)
        else:
            marks = _marks(parameters, None, values, first, quantum, tau)
        end = found + _ones(marks)
        while marks != np.uint64(0):
            for k in range(UNROLLED):
                index[found + k] = np.uint32(first + np.int64(trailing_zeros(marks)))
                marks &= marks - np.uint64(1)
            found += UNROLLED
        found = end
    for i in range(whole, high):
        index[found] = np.uint32(i)
        found += 0 if abs(_residual(parameters, stored, values, quantum, i)) < tau else 1
    return found


@inlined
def _count(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    tau: np.float32,
    magnitude_max: int,
    index: UInt32Array,
    count: Int32Array,
    first: int,
    end: int,
) -> bool:
    """Count the thresholds of each hit; return whether all are finite and in range."""
    largest = np.float64(magnitude_max)
    limit = 2.0**31 * np.float64(quantum)
    sound = True
    for j in range(first, end):
        i = index[j]
        d = np.float64(_residual(parameters, stored, values, quantum, i))
        # The replica moves towards this and never past it, so it stays in range too.
        target = np.float64(values[i]) * np.float64(quantum) + d
        fits = bool(abs(target) < limit)
        c = d / np.float64(tau) if fits else 0.0
        count[j] = np.int32(max(min(c, largest), -largest))
        sound = sound and fits
    return sound


@inlined
def _commit(
    values: Int32Array, multiple: int, index: UInt32Array, count: Int32Array, first: int, end: int
) -> None:
    """Add hits to the replica."""
    for j in range(first, end):
        i = index[j]
        values[i] = np.int32(np.int64(values[i]) + np.int64(count[j]) * multiple)


@internal
def _fault(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    index: UInt32Array,
    first: int,
) -> tuple[int, int]:
    """Return `NOT_FINITE` or `OUT_OF_RANGE`, and the first element that is so."""
    limit = 2.0**31 * np.float64(quantum)
    j = first
    while True:
        i = int(index[j])
        d = _residual(parameters, stored, values, quantum, i)
        if not math.isfinite(d):
            return NOT_FINITE, i
        target = np.float64(values[i]) * np.float64(quantum) + np.float64(d)
        if abs(target) >= limit:
            return OUT_OF_RANGE, i
        j += 1


@compiled
def scan(
    parameters: Float32Array,
    stored: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    multiple: int,
    magnitude_max: int,
    start: int,
    stop: int,
    index: UInt32Array,
    count: Int32Array,
    chunk_hits: Int32Array,
    absorbing: bool,
    committed: Int64Array,
) -> tuple[int, int, np.int32]:
    """Find the hits in ``start <= i < stop``, ascending.

    Parameters
    ----------
    parameters : ndarray of shape (N,), dtype float32
    stored : ndarray of shape (N,) or (0,), dtype float32
        The residual, if it has a vector of its own.
    values : ndarray of shape (N,), dtype int32
        The replica.
    quantum : float32
        Value of one unit of the replica, a power of two.
    multiple : int
        The threshold in quanta, 1 to 2^24: the product with `quantum` is exact in float32.
    magnitude_max : int
        Most thresholds that one element sends; the rest stays in the residual.
    start, stop : int
    index, count : ndarray of shape (capacity + SLACK,), dtypes uint32 and int32
        Filled with the position and the signed number of thresholds of the first `capacity` hits;
        further hits are counted and checked only.
    chunk_hits : ndarray of shape (ceil((stop - start) / CHUNK),), dtype int32
        Filled with the number of hits of each `CHUNK` elements.
    absorbing : bool
        Whether to do `lattice.absorb` in the same pass, which leaves the residual the same. Then
        no element may be at fault.
    committed : ndarray of shape (1,) or (0,), dtype int64
        Unless it is empty, hits are added to `values`, as far as there is room for them, and their
        number is written here, even if an element is at fault. `stored` must be empty.

    Returns
    -------
    hits : int
        Number of hits, which may exceed the capacity; or `NOT_FINITE` or `OUT_OF_RANGE`.
    element : int
        The element at fault, or -1.
    top : int32
        The result of `lattice.absorb`, if `absorbing`.
    """
    capacity = index.size - SLACK
    chunk_hits[:] = 0
    hits = 0
    top = np.int32(0)
    tau = np.float32(multiple) * quantum
    low = start
    while low < stop:
        chunk = (low - start) // CHUNK
        high = min(low + BLOCK, start + (chunk + 1) * CHUNK, stop)
        first = min(hits, capacity)
        end = _find(parameters, stored, values, quantum, tau, low, high, index, first)
        if not _count(parameters, stored, values, quantum, tau, magnitude_max, index,
                      count, first, end):  # fmt: skip
            what, element = _fault(parameters, stored, values, quantum, index, first)
            return what, element, top
        if committed.size and end <= capacity and committed[0] == hits:
            _commit(values, multiple, index, count, first, end)
            committed[0] = end
        if absorbing:
            top = max(top, absorb(parameters, stored, values, quantum, low, high))
        hits += end - first
        chunk_hits[chunk] += end - first
        low = high
    return hits, -1, top


@compiled
def thresholds_of(count: Int32Array) -> int:
    """Return the sum of the magnitudes of hits, in thresholds."""
    total = np.int64(0)
    for j in range(count.size):
        total += abs(np.int64(count[j]))
    return int(total)
