"""Decoding on the device: from the bytes of an update to the hits in its memory.

A code of variable length is read one value after the other. But each block of 64 values can be read
by its own thread, if the thread knows where the block begins. The host reads every update first,
because nothing may change before all of it has proved to be valid. So it sends an outline along, of
12 bytes a block; a block itself takes 70 to 100 bytes, and its hits would take 512.
"""

from typing import Final

import numpy as np
import torch
import triton.language as tl

from gradwire_codecs.arrays import Int8Array, Int32Array, UInt32Array, UInt64Array
from gradwire_codecs.cuda.jit import inlined, kernel
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.cuda.threshold import tiles_of
from gradwire_codecs.format.bits import (
    BLOCK,
    read_head,
    signed,
)
from gradwire_codecs.format.dense import WORD_BYTES, digits_per_word
from gradwire_codecs.format.header import (
    DENSE,
    EVERY,
    FORMAT,
    LISTED,
    LISTED_HITS,
    MAGNITUDE_MAX,
    MULTIPLE,
    OFFSET,
    POSITIONS_BYTES,
    START,
    STOP,
)
from gradwire_codecs.format.reading import EncodedHits
from gradwire_codecs.kernels.compiled import compiled

TILE: Final = 32
"""Blocks of a program: few, so that even a small update uses many multiprocessors."""

VALUES = tl.constexpr(BLOCK)

FIELDS: Final = 3
"""Of an outline, for each block: the bit after its head, its parameters, and the first element that
its first value can be."""


@inlined
def peek(words: tl.tensor, position: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Return the 64 bits from each position on."""
    word = position >> 6
    offset = (position & 63).to(tl.uint64)
    low = tl.load(words + word, mask=mask, other=1).to(tl.uint64)
    high = tl.load(words + word + 1, mask=mask, other=0).to(tl.uint64)
    return (low >> offset) | (high << 1 << (63 - offset))


@inlined
def read_rice(
    words: tl.tensor, position: tl.tensor, k: tl.tensor, mask: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Read a value at each position; return the values, and the positions after them."""
    window = peek(words, position, mask)
    zeros = tl.zeros_like(position)
    empty = mask & (window == 0)
    while tl.sum(empty.to(tl.int32)) > 0:
        zeros += tl.where(empty, 64, 0)
        window = tl.where(empty, peek(words, position + zeros, empty), window)
        empty = empty & (window == 0)
    # The exponent of a power of two, which any float holds exactly, counts the zeros below it.
    lowest = (window & (tl.zeros_like(window) - window)).to(tl.float32).to(tl.int32, bitcast=True)
    zeros += ((lowest >> 23) & 255).to(tl.int64) - 127
    low_bits = (tl.zeros_like(position) + 1 << k) - 1
    rest = peek(words, position + zeros + 1, mask).to(tl.int64) & low_bits
    return (zeros << k) | rest, position + zeros + 1 + k


@kernel("values_count", "places")
def read_blocks(
    words: tl.tensor,
    outline: tl.tensor,
    values_count: tl.tensor,
    places: tl.tensor,
    values: tl.tensor,
    others: tl.tensor,
    HAS_SIGN: tl.constexpr,  # noqa: N803 - constants of a kernel
    HAS_SECOND: tl.constexpr,  # noqa: N803
    ARE_GAPS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Read blocks; `others` is filled with second values, or with 1 or -1 by the signs."""
    block = tl.program_id(0) * TILE + tl.arange(0, TILE)
    exists = block * VALUES < values_count
    position = tl.load(outline + 3 * block, mask=exists, other=0).to(tl.int64)
    parameters = tl.load(outline + 3 * block + 1, mask=exists, other=0).to(tl.int64)
    expected = tl.load(outline + 3 * block + 2, mask=exists, other=0).to(tl.int64)
    k, second_k = parameters & 255, parameters >> 8
    for place in range(places):
        j = block * VALUES + place
        inside = j < values_count
        if HAS_SIGN:
            negative = (peek(words, position, inside) & 1).to(tl.int32)
            tl.store(others + j, 1 - 2 * negative, mask=inside)
            position += 1
        value, position = read_rice(words, position, k, inside)
        if ARE_GAPS:
            value += expected
            expected = value + 1
        tl.store(values + j, value.to(tl.int32), mask=inside)
        if HAS_SECOND:
            second, position = read_rice(words, position, second_k, inside)
            tl.store(others + j, second.to(tl.int32), mask=inside)


@kernel("digits", "magnitude_max", "elements")
def read_digits(
    words: tl.tensor,
    digits: tl.tensor,
    magnitude_max: tl.tensor,
    elements: tl.tensor,
    count: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Read the words of a dense update: a count for each element, 0 where it is no hit."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    word = tl.load(words + at, mask=at.to(tl.int64) * digits < elements, other=0).to(tl.uint64)
    radix = (tl.zeros_like(at).to(tl.int64) + magnitude_max).to(tl.uint64) * 2 + 1
    for place in range(digits):
        element = at.to(tl.int64) * digits + place
        digit = (word % radix).to(tl.int64) - magnitude_max
        word = word // radix
        tl.store(count + element, digit.to(tl.int32), mask=element < elements)


def changes_of(
    encoded: EncodedHits, stream: SideStream
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Decode an update to tensors on the device; call it inside a turn of the side stream.

    Returns
    -------
    change : Tensor of shape (hits,) or (elements covered,), dtype int32
        In quanta.
    index : Tensor of shape (hits,), dtype int32, or None
        The positions of `change`; None for all elements covered.

    Raises
    ------
    MalformedUpdateError
        If the hits are not valid.
    """
    if encoded.counts is not None:
        encoded.check()
        return counts_to_device(encoded.counts, int(encoded.header[MULTIPLE]), stream), None
    if encoded.header[FORMAT] == DENSE:
        encoded.check()
        return _dense_changes(encoded, stream), None
    outlines = _outlines(encoded)
    sizes = [encoded.words.nbytes, *(outline.nbytes for outline in outlines)]
    parts = [encoded.words.view(np.uint8), *(each.reshape(-1).view(np.uint8) for each in outlines)]
    crossed = torch.split(stream.send(np.concatenate(parts).data), sizes)
    words = crossed[0].view(torch.int64)
    hits = encoded.hits
    index, count = _read(words, crossed[1], hits, signs=True)
    if encoded.header[FORMAT] == LISTED:
        listed = int(encoded.header[LISTED_HITS])
        at, rest = _read(words, crossed[2], listed, signs=False)
        count[at] *= rest + 2
    elif encoded.header[FORMAT] == EVERY:
        rest, _ = _read(words, crossed[2], hits, signs=None)
        count *= rest + 1
    return count * int(encoded.header[MULTIPLE]), index


def counts_to_device(counts: Int8Array, multiple: int, stream: SideStream) -> torch.Tensor:
    """Return changes in quanta, dtype int32, by a count of thresholds for each element."""
    return stream.send(counts.view(np.uint8).data).view(torch.int8).to(torch.int32) * multiple


def _read(
    words: torch.Tensor, outline: torch.Tensor, n: int, *, signs: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read gaps with signs, gaps with second values, or, where `signs` is None, values alone."""
    values = torch.empty(n, dtype=torch.int32, device=words.device)
    others = values if signs is None else torch.empty_like(values)
    read_blocks[tiles_of(n, BLOCK * TILE),](
        words,
        outline.view(torch.int32),
        n,
        min(n, BLOCK),
        values,
        others,
        HAS_SIGN=signs is True,
        HAS_SECOND=signs is False,
        ARE_GAPS=signs is not None,
        TILE=TILE,
    )
    return values, others


def _dense_changes(encoded: EncodedHits, stream: SideStream) -> torch.Tensor:
    header = encoded.header
    elements = int(header[STOP] - header[START])
    magnitude_max = int(header[MAGNITUDE_MAX])
    digits = digits_per_word(magnitude_max)
    words = encoded.words.view(np.uint8)[header[OFFSET] :][: -(-elements // digits) * WORD_BYTES]
    count = torch.empty(elements, dtype=torch.int32, device=stream.device)
    read_digits[tiles_of(elements, digits * TILE),](
        stream.send(words.data).view(torch.int64),
        digits,
        magnitude_max,
        elements,
        count,
        TILE=TILE,
    )
    return count * int(header[MULTIPLE])


def _outlines(encoded: EncodedHits) -> list[Int32Array]:
    """Check an update; return the outline of each of its streams."""
    header, words = encoded.header, encoded.words
    index, count = encoded.collect()
    behind = 8 * int(header[OFFSET] + header[POSITIONS_BYTES])
    magnitude = np.abs(count).view(np.uint32)
    none = np.empty(0, np.uint32)
    before = _before(index, int(header[START]))
    outlines = [_outline(words, 8 * int(header[OFFSET]), index - before, none, before, 1)]
    if header[FORMAT] == LISTED:
        at = np.flatnonzero(magnitude > 1).astype(np.uint32)
        before = _before(at, 0)
        rest = magnitude[at] - np.uint32(2)
        outlines.append(_outline(words, behind, at - before, rest, before, 0))
    elif header[FORMAT] == EVERY:
        rest = magnitude - np.uint32(1)
        outlines.append(_outline(words, behind, rest, none, np.zeros_like(rest), 0))
    return outlines


def _before(positions: UInt32Array, start: int) -> UInt32Array:
    """Return the position from which the gap of each position is counted."""
    before = np.empty_like(positions)
    before[0] = start
    before[1:] = positions[:-1] + np.uint32(1)
    return before


@compiled
def _outline(
    words: UInt64Array,
    position: int,
    values: UInt32Array,
    seconds: UInt32Array,
    before: UInt32Array,
    sign_bits: int,
) -> Int32Array:
    """Return the outline of a stream: the values of a block tell where the next block begins.

    `values` are gaps, counted from `before`, or magnitudes. `seconds` are the second values that
    follow each value, or empty.
    """
    outline = np.empty(((values.size + BLOCK - 1) // BLOCK, FIELDS), np.int32)
    k, second_k, end = 0, 0, 64 * words.size
    for block in range(outline.shape[0]):
        low = block * BLOCK
        high = min(low + BLOCK, values.size)
        k, position = read_head(words, position, end, low, k)
        if seconds.size:
            second_k, position = read_head(words, position, end, low, second_k)
        outline[block, 0] = position
        outline[block, 1] = k | second_k << 8
        outline[block, 2] = before[low]
        position += (high - low) * (k + 1 + sign_bits)
        for j in range(low, high):
            position += signed(values[j] >> np.uint32(k))
        if seconds.size:
            position += (high - low) * (second_k + 1)
            for j in range(low, high):
                position += signed(seconds[j] >> np.uint32(second_k))
    return outline
