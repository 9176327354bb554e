"""Damaged updates by the million: they are made and read in one compiled loop.

The loop calls the kernels that `decode` and `apply` call, in the same order. The fuzzer of
`fuzz/targets/updates.py` looks for new paths instead, and goes through the Python around them, too.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_codecs.arrays import Int32Array, Int64Array, UInt8Array, UInt32Array, UInt64Array
from gradwire_codecs.format.bits import TAIL_WORDS, signed
from gradwire_codecs.format.dense import check_counts
from gradwire_codecs.format.header import (
    BYTES,
    FAULTS,
    FIELDS,
    FORMAT,
    HITS,
    INT32_MAX,
    MULTIPLE,
    OFFSET,
    START,
    STOP,
    VALID,
    read_header,
)
from gradwire_codecs.format.hits import ROOM, STATE_FIELDS, WORK, begin_reading, next_hits, scale
from gradwire_codecs.kernels.compiled import compiled

GROWTH_MAX: Final = 16
"""Most bytes that damage adds."""

OUTCOMES: Final = 1 - min(FAULTS)
"""Valid, and everything that can be wrong."""

FINE: Final = 0
CLAIMS_TOO_MUCH: Final = 1
WORKS_TOO_MUCH: Final = 2
OUT_OF_ORDER: Final = 3
OUT_OF_RANGE: Final = 4
MISCOUNTED: Final = 5


@compiled
def _random(state: UInt64Array) -> int:
    """Return the next of 2^63 numbers: xorshift64* of S. Vigna, 2016."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return signed((x * np.uint64(2685821657736338717)) >> np.uint64(1))


@compiled
def _damage(seed: UInt8Array, random: UInt64Array, body: UInt8Array) -> int:
    """Fill `body` with a damaged copy; return its size."""
    size = seed.size
    body[:size] = seed
    for _ in range(1 + _random(random) % 4):
        kind = _random(random) % 8
        # Half of the damage is done to the first bytes: there are the claims.
        reach = size if _random(random) % 2 else min(size, 24)
        at = _random(random) % reach if reach else 0
        if kind < 3 and size:
            body[at] ^= np.uint8(1 << _random(random) % 8)
        elif kind == 3 and size:
            body[at] = np.uint8(_random(random) & 255)
        elif kind == 4 and size:
            body[at] = np.uint8(255 if _random(random) % 2 else 0)
        elif kind == 5 and size:  # one byte less
            body[at : size - 1] = body[at + 1 : size].copy()
            size -= 1
        elif kind == 6 and size < body.size:  # one byte more
            body[at + 1 : size + 1] = body[at:size].copy()
            body[at] = np.uint8(_random(random) & 255)
            size += 1
        elif kind == 7:
            size = _random(random) % (size + 1)
    return size


@compiled
def _look_at(
    index: UInt32Array,
    change: Int32Array,
    last: int,
    stop: int,
    wrong: Int64Array,
) -> None:
    """Compare hits with what `next_hits` and `scale` promise."""
    for j in range(index.size):
        if np.int64(index[j]) <= last:
            wrong[0] = OUT_OF_ORDER
        last = signed(index[j])
        if change[j] == 0 or abs(np.int64(change[j])) > INT32_MAX or last >= stop:
            wrong[0] = OUT_OF_RANGE


@compiled
def _read(data: UInt8Array, words: UInt64Array, elements: int, wrong: Int64Array) -> int:
    """Read an update; return `VALID` or what is wrong with it, and set `wrong` where we are."""
    header, state = np.empty(FIELDS, np.int64), np.empty(STATE_FIELDS, np.int64)
    outcome = read_header(data, elements, header)
    if outcome != VALID:
        return outcome
    # What is allocated from here on is so many numbers.
    if header[HITS] > 8 * data.size:
        wrong[0] = CLAIMS_TOO_MUCH
        return VALID
    if header[FORMAT] == BYTES:
        counts = words.view(np.int8)[header[OFFSET] : data.size]
        if header[STOP] > elements or counts.size != header[STOP] - header[START]:
            wrong[0] = MISCOUNTED
        return check_counts(counts, header[HITS])
    begin_reading(header, data.size, state)
    index, count = np.empty(ROOM, np.uint32), np.empty(ROOM, np.int32)
    last, hits = header[START] - 1, 0
    while True:
        n = next_hits(words, header, state, index, count)
        if state[WORK] > 8 * data.size:
            wrong[0] = WORKS_TOO_MUCH
        if n > 0:
            n = scale(header[MULTIPLE], n, count)
        if n <= 0:
            break
        _look_at(index[:n], count, last, header[STOP], wrong)
        last = signed(index[n - 1])
        hits += n
    if header[STOP] > elements or (n == VALID and hits != header[HITS]):
        wrong[0] = MISCOUNTED
    return int(n)


@compiled
def _campaign(
    seed: UInt8Array,
    elements: int,
    cases: int,
    random: UInt64Array,
    outcomes: Int64Array,
    body: UInt8Array,
) -> int:
    words = np.zeros(-(-body.size // 8) + TAIL_WORDS, np.uint64)
    in_words = words.view(np.uint8)
    wrong = np.zeros(1, np.int64)
    for _ in range(cases):
        size = _damage(seed, random, body)
        in_words[:size] = body[:size]
        in_words[size:] = 0
        length = elements if _random(random) % 4 else INT32_MAX
        outcome = _read(body[:size], words, length, wrong)
        outcomes[-outcome] += 1
        if wrong[0]:
            body[size:] = 0
            return int(wrong[0])
    return FINE


def read_damaged(
    seed: bytes, elements: int, cases: int, random: int
) -> tuple[npt.NDArray[np.int64], int, bytes]:
    """Damage an update in many ways, and read what comes of it.

    Parameters
    ----------
    seed : bytes
        A valid update of a vector of so many `elements`.
    cases : int
        How many ways.
    random : int
        Seed of the generator, above 0.

    Returns
    -------
    outcomes : ndarray of shape (OUTCOMES,), dtype int64
        How many were valid, and how many had which fault, by its number without the sign.
    wrong : int
        `FINE`, or which promise was broken.
    body : bytes
        By which bytes, with zeros behind them; the last ones that were read.
    """
    body = np.zeros(len(seed) + GROWTH_MAX, np.uint8)
    outcomes = np.zeros(OUTCOMES, np.int64)
    state = np.array([random], np.uint64)
    wrong = _campaign(np.frombuffer(seed, np.uint8), elements, cases, state, outcomes, body)
    return outcomes, wrong, body.tobytes()
