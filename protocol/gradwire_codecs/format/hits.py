"""Decoding the hits of an encoded update, a block at a time.

A caller that checks, collects or adds hits calls `next_hits` until there are no more. So an update
goes from bytes into a vector in one pass, and only a block of hits lies in between, which stays in
the first-level cache.

`next_hits` checks all it reads, each time: it never reads outside its arrays, and never returns an
element outside the range. `scale` checks that no change is too large.
"""

from typing import Final

import numpy as np

from gradwire_codecs.arrays import Int32Array, Int64Array, UInt32Array, UInt64Array
from gradwire_codecs.format.bits import (
    BLOCK,
    INVALID,
    ends_at,
    peek,
    read_head,
    read_rice,
)
from gradwire_codecs.format.dense import digits_per_word
from gradwire_codecs.format.header import (
    DENSE,
    EVERY,
    FORMAT,
    HITS,
    HITS_NOT_CODED,
    INT32_MAX,
    LISTED,
    LISTED_HITS,
    MAGNITUDE_MAX,
    OFFSET,
    PLAIN,
    POSITIONS_BYTES,
    START,
    STOP,
    TOO_LARGE,
)
from gradwire_codecs.kernels.compiled import compiled, internal, trailing_zeros

ROOM: Final = 2 * BLOCK
"""Most hits that are read at a time, in whole blocks. If each touches a cache line of two vectors,
that is 16 KiB, half of the first-level cache. Fewer would take more calls; more would not stay
there."""

POSITION: Final = 0
"""Bit of the update where the next position begins; in a dense update, the next word."""
POSITIONS_END: Final = 1
MAGNITUDE: Final = 2
"""Bit of the update where the next magnitude begins."""
MAGNITUDES_END: Final = 3
DONE: Final = 4
"""Hits read so far."""
EXPECTED: Final = 5
"""The first element that the next hit can be."""
GAP_PARAMETER: Final = 6
LIST_PARAMETER: Final = 7
MAGNITUDE_PARAMETER: Final = 8
LISTED_DONE: Final = 9
"""Hits on the list read so far."""
NEXT_LISTED: Final = 10
"""Number of the next hit on the list, counted from the first hit."""
NEXT_MAGNITUDE: Final = 11
"""Its magnitude."""
DIGITS: Final = 12
"""Elements per word of a dense update."""
WORK: Final = 13
"""Codes and digits read so far: the time is proportional to them."""
STATE_FIELDS: Final = 14
"""Length of the array that holds the state of reading; the indices are above."""


@compiled
def begin_reading(header: Int64Array, size: int, state: Int64Array) -> None:
    """Set `state`, of shape (STATE_FIELDS,), to the first hit of an update of `size` bytes."""
    state[:] = 0
    state[POSITION] = 8 * header[OFFSET]
    state[POSITIONS_END] = state[MAGNITUDES_END] = 8 * size
    if header[FORMAT] in (LISTED, EVERY):
        state[POSITIONS_END] = 8 * (header[OFFSET] + header[POSITIONS_BYTES])
    state[MAGNITUDE] = state[POSITIONS_END]
    state[EXPECTED] = header[START]
    state[NEXT_LISTED] = -1
    if header[FORMAT] == DENSE:
        state[DIGITS] = digits_per_word(header[MAGNITUDE_MAX])


@internal
def next_hits(
    words: UInt64Array,
    header: Int64Array,
    state: Int64Array,
    index: UInt32Array,
    count: Int32Array,
) -> int:
    """Read up to `ROOM` hits.

    Parameters
    ----------
    words : ndarray of shape (w,), dtype uint64
        The update, and `TAIL_WORDS` zeros after it.
    header : ndarray of shape (header.FIELDS,), dtype int64
    state : ndarray of shape (STATE_FIELDS,), dtype int64
        Where to go on; changed.
    index, count : ndarray of shape (ROOM,), dtypes uint32 and int32
        Filled with positions and signed thresholds.

    Returns
    -------
    int
        How many were read; 0 when all have been read and the update ends there, as it has to.
        Otherwise a key of `header.FAULTS`.
    """
    if header[FORMAT] == DENSE:
        n = _next_digits(words, header, state, index, count)
    else:
        n = _next_positions(words, header, state, index, count)
        if n > 0 and header[FORMAT] != PLAIN:
            good = (
                _read_list(words, header, state, n, count)
                if header[FORMAT] == LISTED
                else _read_magnitudes(words, state, n, count)
            )
            n = n if good else HITS_NOT_CODED
    if n > 0:
        state[DONE] += n
    return n


@internal
def _next_positions(
    words: UInt64Array,
    header: Int64Array,
    state: Int64Array,
    index: UInt32Array,
    count: Int32Array,
) -> int:
    done = state[DONE]
    n = min(ROOM, header[HITS] - done)
    end = state[POSITIONS_END]
    if n == 0:
        ended = ends_at(words, state[POSITION], end)
        ended = ended and ends_at(words, state[MAGNITUDE], state[MAGNITUDES_END])
        return 0 if ended else HITS_NOT_CODED
    expected, stop = state[EXPECTED], header[STOP]
    k, position = state[GAP_PARAMETER], state[POSITION]
    mask = np.uint64(0)
    for j in range(n):
        if j % BLOCK == 0:
            k, position = read_head(words, position, end, done + j, k)
            if k == INVALID:
                return HITS_NOT_CODED
            mask = (np.uint64(1) << np.uint64(k)) - np.uint64(1)
        window = peek(words, position)
        count[j] = 1 - 2 * np.int64(window & np.uint64(1))
        window >>= np.uint64(1)
        zeros = np.int64(trailing_zeros(window))
        if zeros + k < 63:  # nearly always: `read_rice`, from the same window
            low = window >> np.uint64(zeros) >> np.uint64(1) & mask
            expected += zeros << k | np.int64(low)
            position += zeros + k + 2
        else:
            gap, position = read_rice(words, position + 1, end, k)
            if gap == INVALID:
                return HITS_NOT_CODED
            expected += gap
        if position > end or expected >= stop:
            return HITS_NOT_CODED
        index[j] = expected
        expected += 1
    state[GAP_PARAMETER] = k
    state[EXPECTED], state[POSITION] = expected, position
    state[WORK] += n
    return int(n)


@internal
def _read_list(
    words: UInt64Array, header: Int64Array, state: Int64Array, n: int, count: Int32Array
) -> bool:
    """Multiply the counts of `n` hits by the magnitudes that are listed for them.

    The next hit on the list is read ahead and stored in `state`; after the last one it is the
    number of all hits.
    """
    first, position, end = state[DONE], state[MAGNITUDE], state[MAGNITUDES_END]
    gap_k, k = state[LIST_PARAMETER], state[MAGNITUDE_PARAMETER]
    done, listed, magnitude = state[LISTED_DONE], state[NEXT_LISTED], state[NEXT_MAGNITUDE]
    while listed < first + n:
        if listed >= first:
            count[listed - first] *= np.int32(magnitude)
        if done == header[LISTED_HITS]:
            listed = header[HITS]
            break
        if done % BLOCK == 0:
            gap_k, position = read_head(words, position, end, done, gap_k)
            k, position = read_head(words, position, end, done, k)
            if gap_k == INVALID or k == INVALID:
                return False
        gap, position = read_rice(words, position, end, gap_k)
        rest, position = read_rice(words, position, end, k)
        listed += gap + 1
        magnitude = rest + 2
        if gap == INVALID or not 0 <= rest <= INT32_MAX - 2 or listed >= header[HITS]:
            return False
        done += 1
    state[WORK] += 2 * (done - state[LISTED_DONE])
    state[MAGNITUDE], state[LIST_PARAMETER], state[MAGNITUDE_PARAMETER] = position, gap_k, k
    state[LISTED_DONE], state[NEXT_LISTED], state[NEXT_MAGNITUDE] = done, listed, magnitude
    return True


@internal
def _read_magnitudes(words: UInt64Array, state: Int64Array, n: int, count: Int32Array) -> bool:
    """Multiply the counts of `n` hits by their magnitudes."""
    end, done = state[MAGNITUDES_END], state[DONE]
    k, position = state[MAGNITUDE_PARAMETER], state[MAGNITUDE]
    for j in range(n):
        if j % BLOCK == 0:
            k, position = read_head(words, position, end, done + j, k)
            if k == INVALID:
                return False
        rest, position = read_rice(words, position, end, k)
        if not 0 <= rest <= INT32_MAX - 1:
            return False
        count[j] *= np.int32(rest + 1)
    state[MAGNITUDE_PARAMETER], state[MAGNITUDE] = k, position
    state[WORK] += n
    return True


@internal
def _next_digits(
    words: UInt64Array,
    header: Int64Array,
    state: Int64Array,
    index: UInt32Array,
    count: Int32Array,
) -> int:
    magnitude_max, digits, stop = header[MAGNITUDE_MAX], state[DIGITS], header[STOP]
    radix = np.uint64(2 * magnitude_max + 1)
    expected, position = state[EXPECTED], state[POSITION]
    n = 0
    while expected < stop and n + digits <= ROOM:
        if position + 64 > state[POSITIONS_END]:
            return HITS_NOT_CODED
        word = peek(words, position)
        behind = min(expected + digits, stop)
        for element in range(expected, behind):
            # Dividing by a constant becomes a multiplication, which takes a quarter of the time.
            rest = word // np.uint64(3) if magnitude_max == 1 else word // radix
            digit = np.int64(word - rest * radix)
            word = rest
            # Every digit is written, and kept only if it is a hit: no branch has to be predicted.
            index[n] = element
            count[n] = digit - magnitude_max
            n += 1 if digit != magnitude_max else 0
        if word:
            return HITS_NOT_CODED
        state[WORK] += behind - expected
        expected = behind
        position += 64
    if state[DONE] + n > header[HITS]:
        return HITS_NOT_CODED
    if n == 0 and (state[DONE] != header[HITS] or position != state[POSITIONS_END]):
        return HITS_NOT_CODED
    state[EXPECTED], state[POSITION] = expected, position
    return n


@internal
def scale(multiple: int, n: int, count: Int32Array) -> int:
    """Turn thresholds of `n` hits into quanta, in place; return `n`, or `TOO_LARGE`."""
    largest = np.int64(0)
    for j in range(n):
        quanta = np.int64(count[j]) * multiple
        largest = max(largest, abs(quanta))
        count[j] = np.int32(quanta)
    return n if largest <= INT32_MAX else TOO_LARGE
