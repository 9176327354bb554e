"""Sparse coder: positions as gaps in Rice code with a sign, and magnitudes after them.

Magnitudes above 1 are mostly rare. So a list after the positions has the hits with such a
magnitude, as gaps in Rice code, too: it takes nothing if there are none, and little if there are
few. If most hits have one, every magnitude is coded instead. protocol/README.md describes the code
bit by bit.

An encoder first computes the size, to the bit, and then writes once. Each block's parameter depends
only on the values of the block, so that blocks can be coded in parallel.
"""

from dataclasses import dataclass

import numpy as np

from gradwire_codecs.arrays import Int32Array, UInt8Array, UInt32Array, UInt64Array
from gradwire_codecs.format.bits import (
    BLOCK,
    heads_bits,
    parameter_of,
    signed,
    write_bits,
    write_head,
    write_rice,
)
from gradwire_codecs.format.header import EVERY, LISTED, PLAIN, numbers_bytes
from gradwire_codecs.kernels.compiled import compiled


@compiled
def _measure_positions(index: UInt32Array, start: int, parameters: UInt8Array) -> int:
    """Choose a parameter for each block; return the bits of gaps and signs."""
    gaps = np.empty(BLOCK, np.uint32)
    expected = np.uint32(start)
    bits = index.size
    for block in range(parameters.size):
        low = block * BLOCK
        n = min(BLOCK, index.size - low)
        for j in range(n):
            gaps[j] = index[low + j] - expected
            expected = index[low + j] + np.uint32(1)
        k, least = parameter_of(gaps, n)
        parameters[block] = k
        bits += least
    return bits + heads_bits(parameters, parameters.size)


@compiled
def _measure_list(
    count: Int32Array, gap_parameters: UInt8Array, parameters: UInt8Array
) -> tuple[int, int]:
    """Choose parameters for each block of the list of hits with a magnitude above 1.

    Return the number of these hits, and the bits that the list takes.
    """
    gaps, rest = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    expected = listed = block = n = bits = signed(0)
    for i in range(count.size):
        magnitude = abs(np.int64(count[i]))
        if magnitude > 1:
            gaps[n] = i - expected
            rest[n] = magnitude - 2
            expected = i + 1
            listed += 1
            n += 1
        if n == BLOCK or (n and i == count.size - 1):
            gap_k, gap_bits = parameter_of(gaps, n)
            k, least = parameter_of(rest, n)
            gap_parameters[block], parameters[block] = gap_k, k
            bits += gap_bits + least
            block += 1
            n = 0
    if block:
        bits += heads_bits(gap_parameters, block) + heads_bits(parameters, block)
    return listed, bits


@compiled
def _measure_magnitudes(count: Int32Array, parameters: UInt8Array) -> int:
    """Choose a parameter for each block; return the bits of all magnitudes."""
    rest = np.empty(BLOCK, np.uint32)
    bits = 0
    for block in range(parameters.size):
        low = block * BLOCK
        n = min(BLOCK, count.size - low)
        for j in range(n):
            rest[j] = abs(np.int64(count[low + j])) - 1
        k, least = parameter_of(rest, n)
        parameters[block] = k
        bits += least
    return bits + heads_bits(parameters, parameters.size)


@compiled
def _write_positions(
    index: UInt32Array, count: Int32Array, start: int, parameters: UInt8Array, words: UInt64Array
) -> int:
    """Write gaps and signs; return the bits."""
    expected = np.uint32(start)
    position = signed(0)
    for block in range(parameters.size):
        position = write_head(words, position, parameters, block)
        k = signed(parameters[block])
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, index.size)):
            gap = index[i] - expected
            expected = index[i] + np.uint32(1)
            negative = np.uint64(count[i] < 0)
            zeros = signed(gap >> np.uint32(k))
            if zeros + k <= 62:  # nearly always: all of it fits one word
                low = np.uint64(gap) & ((np.uint64(1) << np.uint64(k)) - np.uint64(1))
                code = (low << np.uint64(1) | np.uint64(1)) << np.uint64(zeros)
                code = code << np.uint64(1) | negative
                position = write_bits(words, position, code, zeros + k + 2)
            else:
                position = write_bits(words, position, negative, signed(1))
                position = write_rice(words, position, np.uint32(gap), k)
    return position


@compiled
def _write_list(
    count: Int32Array,
    gap_parameters: UInt8Array,
    parameters: UInt8Array,
    position: int,
    words: UInt64Array,
) -> None:
    """Write the list of hits with a magnitude above 1."""
    expected = listed = 0
    for i in range(count.size):
        magnitude = abs(np.int64(count[i]))
        if magnitude == 1:
            continue
        block = listed // BLOCK
        if listed % BLOCK == 0:
            position = write_head(words, position, gap_parameters, block)
            position = write_head(words, position, parameters, block)
        gap, rest = np.uint32(i - expected), np.uint32(magnitude - 2)
        position = write_rice(words, position, gap, signed(gap_parameters[block]))
        position = write_rice(words, position, rest, signed(parameters[block]))
        expected = i + 1
        listed += 1


@compiled
def _write_magnitudes(
    count: Int32Array, parameters: UInt8Array, position: int, words: UInt64Array
) -> None:
    """Write all magnitudes."""
    for i in range(count.size):
        block = i // BLOCK
        if i % BLOCK == 0:
            position = write_head(words, position, parameters, block)
        rest = np.uint32(abs(np.int64(count[i])) - 1)
        position = write_rice(words, position, rest, signed(parameters[block]))


def bytes_of(bits: int) -> int:
    """Return how many whole bytes take so many bits."""
    return (bits + 7) // 8


@dataclass(frozen=True, slots=True)
class SparsePlan:
    """The format, parameters and size of a sparse update."""

    format: int
    """`PLAIN`, `LISTED` or `EVERY`."""
    numbers: list[int]
    """Header fields that only this format has."""
    positions_bytes: int
    magnitudes_bytes: int
    gap_parameters: UInt8Array
    """For each block of gaps between hits."""
    list_parameters: UInt8Array
    """For each block of gaps between listed hits."""
    magnitude_parameters: UInt8Array
    """For each block of magnitudes."""

    @property
    def hits_bytes(self) -> int:
        """Bytes of the hits."""
        return self.positions_bytes + self.magnitudes_bytes

    @property
    def size(self) -> int:
        """Bytes of the hits and of `numbers`."""
        return numbers_bytes(self.numbers) + self.hits_bytes


def plan_sparse(index: UInt32Array, count: Int32Array, start: int) -> SparsePlan:
    """Choose the sparse format and the parameters that take the fewest bytes.

    Parameters
    ----------
    index : ndarray of shape (hits,), dtype uint32
        Ascending positions, at least one, none below `start`.
    count : ndarray of shape (hits,), dtype int32
        Signed numbers of thresholds, never 0.
    start : int
        First element covered.
    """
    blocks = -(-len(index) // BLOCK)
    gaps, in_list, magnitudes = (np.empty(blocks, np.uint8) for _ in range(3))
    positions_bytes = bytes_of(_measure_positions(index, start, gaps))
    listed, bits = _measure_list(count, in_list, magnitudes)
    if not listed:
        return SparsePlan(PLAIN, [], positions_bytes, 0, gaps, in_list, magnitudes)
    plan = SparsePlan(
        LISTED,
        [listed, positions_bytes],
        positions_bytes,
        bytes_of(bits),
        gaps,
        in_list,
        magnitudes,
    )
    every = np.empty(blocks, np.uint8)
    bits = _measure_magnitudes(count, every)
    other = SparsePlan(
        EVERY, [positions_bytes], positions_bytes, bytes_of(bits), gaps, in_list, every
    )
    return other if other.size < plan.size else plan


def write_sparse(index: UInt32Array, count: Int32Array, start: int, plan: SparsePlan) -> bytes:
    """Code hits according to the result of `plan_sparse` for them."""
    size = plan.hits_bytes
    words = np.zeros(size // 8 + 2, np.uint64)
    _write_positions(index, count, start, plan.gap_parameters, words)
    at = 8 * plan.positions_bytes
    if plan.format == LISTED:
        _write_list(count, plan.list_parameters, plan.magnitude_parameters, at, words)
    elif plan.format == EVERY:
        _write_magnitudes(count, plan.magnitude_parameters, at, words)
    return words.astype("<u8", copy=False).view(np.uint8)[:size].tobytes()
