"""Sparse coder: the gaps between hits in Golomb-Rice code, a sign, and the rest of the magnitude.

For positions drawn at random, gaps are distributed geometrically, and a Rice code with the right
parameter is then within about one per cent of the entropy [1]_. The parameters are chosen by
counting the exact number of bits, never by a formula alone.

Per hit, least significant bit first::

    gap        gap >> k zeros, a one, then the k low bits of the gap, where the gap is the
               number of elements passed over since the previous hit (or since `start`)
    sign       one bit: 1 for a negative count
    magnitude  |count| - 1, coded as the gap is with a parameter of its own; absent from the
               whole update where every magnitude is 1

The last byte is filled up with zeros.

References
----------
.. [1] S. W. Golomb, "Run-length encodings", IEEE Trans. Information Theory 12(3), 1966;
   R. F. Rice, "Some practical universal noiseless coding techniques", JPL 79-22, 1979.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_codecs.arrays import Buffer, Int32Array, UInt8Array, UInt32Array
from gradwire_codecs.compiled import compiled
from gradwire_codecs.errors import MalformedUpdateError

NO_MAGNITUDES: Final = 255
"""In place of the magnitudes' Rice parameter: every magnitude is 1."""

RICE_PARAMETER_MAX: Final = 31

WINDOW_BITS: Final = 57
"""Bits that one unaligned 8-byte read is sure to hold: 64 less the up to 7 before the position."""

ZEROS: Final = np.array([8] + [(i & -i).bit_length() - 1 for i in range(1, 256)], np.uint8)
"""Zeros before the first one of a byte, from the lowest bit on."""

TAIL_BYTES: Final = 8
"""Zeros behind the input, so that an 8-byte read at its last byte stays inside the array."""


@compiled
def _gap_bits(index: UInt32Array, start: int, k: int) -> np.int64:
    bits = np.int64(index.size * (k + 1))
    expected = np.int64(start)
    for i in range(index.size):
        position = np.int64(index[i])
        bits += (position - expected) >> k
        expected = position + 1
    return bits


@compiled
def _magnitude_bits(count: Int32Array, k: int) -> np.int64:
    bits = np.int64(count.size * (k + 1))
    for i in range(count.size):
        bits += (abs(np.int64(count[i])) - 1) >> k
    return bits


@compiled
def _best_parameters(
    index: UInt32Array, count: Int32Array, start: int
) -> tuple[int, int, np.int64]:
    """Return both Rice parameters and the number of bits they lead to.

    The number of bits is a convex function of the parameter (its decrease from k to k + 1 is the
    sum of ``ceil((value >> k) / 2)`` less one per value, which shrinks as k grows), so going
    downhill from the mean in both directions finds the minimum.
    """
    n = index.size
    total = np.int64(0)
    for i in range(n):
        total += abs(np.int64(count[i])) - 1

    gap_k = _log2((np.int64(index[n - 1]) + 1 - start - n) // n)
    gap_bits = _gap_bits(index, start, gap_k)
    for step in (-1, 1):
        while 0 <= gap_k + step <= RICE_PARAMETER_MAX:
            bits = _gap_bits(index, start, gap_k + step)
            if bits >= gap_bits:
                break
            gap_k, gap_bits = gap_k + step, bits
    if total == 0:
        return gap_k, NO_MAGNITUDES, gap_bits + n

    magnitude_k = _log2(total // n)
    magnitude_bits = _magnitude_bits(count, magnitude_k)
    for step in (-1, 1):
        while 0 <= magnitude_k + step <= RICE_PARAMETER_MAX:
            bits = _magnitude_bits(count, magnitude_k + step)
            if bits >= magnitude_bits:
                break
            magnitude_k, magnitude_bits = magnitude_k + step, bits
    return gap_k, magnitude_k, gap_bits + n + magnitude_bits


@compiled
def _log2(value: np.int64) -> int:
    k = 0
    while value > 1 and k < RICE_PARAMETER_MAX:
        value >>= 1
        k += 1
    return k


@compiled
def _put(out: UInt8Array, state: npt.NDArray[np.uint64], value: np.uint64, bits: np.uint64) -> None:
    """Append up to 32 bits; `state` is (bits waiting, how many, next byte)."""
    state[0] |= value << state[1]
    state[1] += bits
    while state[1] >= np.uint64(8):
        out[state[2]] = state[0] & np.uint64(0xFF)
        state[0] >>= np.uint64(8)
        state[1] -= np.uint64(8)
        state[2] += np.uint64(1)


@compiled
def _put_rice(out: UInt8Array, state: npt.NDArray[np.uint64], value: np.int64, k: int) -> None:
    quotient = value >> k
    while quotient >= 31:
        _put(out, state, np.uint64(0), np.uint64(31))
        quotient -= 31
    _put(out, state, np.uint64(1) << np.uint64(quotient), np.uint64(quotient + 1))
    if k:
        _put(out, state, np.uint64(value & ((1 << k) - 1)), np.uint64(k))


@compiled
def _write(
    index: UInt32Array,
    count: Int32Array,
    start: int,
    gap_k: int,
    magnitude_k: int,
    out: UInt8Array,
) -> None:
    state = np.zeros(3, np.uint64)
    expected = np.int64(start)
    for i in range(index.size):
        position = np.int64(index[i])
        _put_rice(out, state, position - expected, gap_k)
        expected = position + 1
        negative = count[i] < 0
        _put(out, state, np.uint64(1 if negative else 0), np.uint64(1))
        if magnitude_k != NO_MAGNITUDES:
            _put_rice(out, state, abs(np.int64(count[i])) - 1, magnitude_k)
    if state[1]:
        out[state[2]] = state[0]


@compiled
def _peek(data: UInt8Array, position: int) -> np.uint64:
    """Return at least `WINDOW_BITS` bits from bit `position` on, the first one lowest."""
    byte = position >> 3
    window = np.uint64(0)
    for j in range(8):
        window |= np.uint64(data[byte + j]) << np.uint64(8 * j)
    return window >> np.uint64(position & 7)


@compiled
def _take_rice(data: UInt8Array, position: int, end: int, k: int) -> tuple[np.int64, int]:
    """Read one value; return it and the position behind it, or -1 and what is left to say."""
    quotient = np.int64(0)
    window = _peek(data, position)
    left = WINDOW_BITS
    while window & np.uint64(1) == 0:
        quotient += 1
        window >>= np.uint64(1)
        left -= 1
        position += 1
        if position >= end:
            return np.int64(-1), position
        if left == 0:
            window = _peek(data, position)
            left = WINDOW_BITS
    position += 1
    if position + k > end:
        return np.int64(-1), position
    low = np.int64(_peek(data, position) & ((np.uint64(1) << np.uint64(k)) - np.uint64(1)))
    return (quotient << k) | low, position + k


@compiled
def _read(
    data: UInt8Array,
    end: int,
    start: int,
    stop: int,
    gap_k: int,
    magnitude_k: int,
    index: UInt32Array,
    count: Int32Array,
) -> int:
    """Fill `index` and `count`; return the bits used, or -1 if `data` is not what it should be."""
    position = 0
    expected = np.int64(start)
    k = np.uint64(gap_k)
    mask = (np.uint64(1) << k) - np.uint64(1)
    for i in range(index.size):
        window = _peek(data, position)
        zeros = np.uint64(ZEROS[window & np.uint64(0xFF)])
        if zeros < 8:
            # Nearly always: gap and sign in one read, without a branch that depends on the data.
            window >>= zeros + np.uint64(1)
            gap = np.int64(zeros << k | window & mask)
            negative = window >> k & np.uint64(1)
            position += int(zeros) + gap_k + 2
            if gap >= stop - expected or position > end:
                return -1
        else:
            gap, position = _take_rice(data, position, end, gap_k)
            if gap < 0 or gap >= stop - expected or position >= end:
                return -1
            negative = _peek(data, position) & np.uint64(1)
            position += 1
        magnitude = np.int64(1)
        if magnitude_k != NO_MAGNITUDES:
            rest, position = _take_rice(data, position, end, magnitude_k)
            if rest < 0 or rest >= 2**31 - 1:
                return -1
            magnitude += rest
        index[i] = expected + gap
        count[i] = -magnitude if negative else magnitude
        expected += gap + 1
    return position


def sparse_parameters(index: UInt32Array, count: Int32Array, start: int) -> tuple[int, int, int]:
    """Choose the Rice parameters for these hits.

    Parameters
    ----------
    index : ndarray of shape (k,), dtype uint32
        Ascending positions, at least one, none below `start`.
    count : ndarray of shape (k,), dtype int32
        Non-zero numbers of thresholds.
    start : int
        First position covered.

    Returns
    -------
    gap_k, magnitude_k : int
        Rice parameters of the gaps and of the magnitudes (or `NO_MAGNITUDES`).
    size : int
        Exact length of the coded hits in bytes.
    """
    gap_k, magnitude_k, bits = _best_parameters(index, count, start)
    return gap_k, magnitude_k, (int(bits) + 7) // 8


def write_sparse(
    index: UInt32Array, count: Int32Array, start: int, gap_k: int, magnitude_k: int, size: int
) -> bytes:
    """Code hits with parameters and a size that came from `sparse_parameters`."""
    out = np.zeros(size, np.uint8)
    _write(index, count, start, gap_k, magnitude_k, out)
    return out.tobytes()


def read_sparse(
    body: Buffer, start: int, stop: int, hits: int, gap_k: int, magnitude_k: int
) -> tuple[UInt32Array, Int32Array]:
    """Decode `hits` hits in ``start <= i < stop``.

    Raises
    ------
    MalformedUpdateError
        If the bytes cannot have come from `write_sparse`. What was allocated until then is
        bounded by the length of `body`, whatever `hits` claims.
    """
    if gap_k > RICE_PARAMETER_MAX or (
        magnitude_k > RICE_PARAMETER_MAX and magnitude_k != NO_MAGNITUDES
    ):
        raise MalformedUpdateError(
            f"Rice parameters {gap_k} and {magnitude_k}; the limit is {RICE_PARAMETER_MAX}"
        )
    end = 8 * len(body)
    if hits > end // 2:  # a hit takes at least the one of its gap and its sign
        raise MalformedUpdateError(f"{hits} hits cannot be coded in {len(body)} bytes")
    data = np.zeros(len(body) + TAIL_BYTES, np.uint8)
    data[: len(body)] = np.frombuffer(body, np.uint8)
    index = np.empty(hits, np.uint32)
    count = np.empty(hits, np.int32)
    used = _read(data, end, start, stop, gap_k, magnitude_k, index, count)
    if used < 0:
        raise MalformedUpdateError("the coded hits leave their range or their bytes")
    if (used + 7) // 8 != len(body) or (used % 8 and int(data[used // 8]) >> (used % 8)):
        raise MalformedUpdateError(f"{hits} hits end at bit {used} of {end}, with something behind")
    return index, count
