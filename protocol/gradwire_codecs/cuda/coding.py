"""Encoding on the device: the bytes that `gradwire_codecs.format.sparse` and `dense` write.

The format is made for it: the parameter of a block depends only on the values of the block. So all
blocks choose theirs in parallel (`measure`), the running sum of their lengths is where each begins,
and all values are written in parallel (`write`), each to its own bits.
"""

import triton.language as tl

from gradwire_codecs.cuda.jit import inlined, kernel

BLOCK = tl.constexpr(64)
"""As `gradwire_codecs.format.bits.BLOCK`."""

FIRST_PARAMETER_BITS = tl.constexpr(5)


@kernel("values_count")
def measure(
    values: tl.tensor,
    values_count: tl.tensor,
    parameters: tl.tensor,
    bits: tl.tensor,
    ROWS: tl.constexpr,  # noqa: N803 - constants of a kernel
) -> None:
    """Choose the best parameter of each block, the smallest of several; add to its `bits`."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = j < values_count
    value = tl.load(values + j, mask=inside, other=0).to(tl.int64)
    in_block = tl.sum(inside.to(tl.int64), 1)
    best = tl.zeros_like(in_block)
    least = in_block + tl.sum(value, 1)
    for k in range(1, 32):
        each = in_block * (k + 1) + tl.sum(value >> k, 1)
        best = tl.where(each < least, k, best)
        least = tl.minimum(least, each)
    exists = in_block > 0
    tl.store(parameters + block, best.to(tl.int32), mask=exists)
    before = tl.load(bits + block, mask=exists, other=0)
    tl.store(bits + block, before + least.to(tl.int32), mask=exists)


@inlined
def head_zeros(parameters: tl.tensor, block: tl.tensor, exists: tl.tensor) -> tl.tensor:
    """Return the zeros in the head of each block.

    The head of the first block has no zeros; its result is one less than its bits, as for others.
    """
    k = tl.load(parameters + block, mask=exists, other=0)
    step = k - tl.load(parameters + block - 1, mask=exists & (block > 0), other=0)
    zeros = tl.where(step > 0, 2 * step - 1, -2 * step)
    return tl.where(block > 0, zeros, FIRST_PARAMETER_BITS - 1)


@kernel("blocks")
def add_heads(
    parameters: tl.tensor,
    blocks: tl.tensor,
    bits: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Add the bits of the heads of blocks."""
    block = tl.program_id(0) * TILE + tl.arange(0, TILE)
    exists = block < blocks
    before = tl.load(bits + block, mask=exists, other=0)
    tl.store(bits + block, before + head_zeros(parameters, block, exists) + 1, mask=exists)


@inlined
def write_bits(words: tl.tensor, position: tl.tensor, value: tl.tensor, mask: tl.tensor) -> None:
    """Write up to 33 bits over zeros; other threads write other bits of the same words."""
    word = position >> 5
    shifted = value << (position & 31)
    high = shifted >> 32
    tl.atomic_or(words + word, shifted.to(tl.int32), mask=mask, sem="relaxed")
    tl.atomic_or(words + word + 1, high.to(tl.int32), mask=mask & (high != 0), sem="relaxed")


@inlined
def write_head(
    words: tl.tensor,
    position: tl.tensor,
    parameters: tl.tensor,
    block: tl.tensor,
    exists: tl.tensor,
) -> tl.tensor:
    """Write the heads of blocks; return the positions after them."""
    zeros = head_zeros(parameters, block, exists)
    first = tl.load(parameters + block, mask=exists & (block == 0), other=0)
    at = tl.where(block > 0, position + zeros, position)
    write_bits(words, at, tl.where(block > 0, 1, first).to(tl.uint64), exists)
    return position + zeros + 1


@inlined
def write_rice(
    words: tl.tensor, position: tl.tensor, value: tl.tensor, k: tl.tensor, mask: tl.tensor
) -> None:
    """Write values in Rice code over zeros."""
    rest = value & ((tl.zeros_like(value) + 1 << k) - 1)
    write_bits(words, position + (value >> k), (rest << 1 | 1).to(tl.uint64), mask)


@kernel("values_count", "base")
def write(
    values: tl.tensor,
    seconds: tl.tensor,
    signed: tl.tensor,
    values_count: tl.tensor,
    parameters: tl.tensor,
    second_parameters: tl.tensor,
    bits: tl.tensor,
    ends: tl.tensor,
    base: tl.tensor,
    words: tl.tensor,
    HAS_SIGN: tl.constexpr,  # noqa: N803
    HAS_SECOND: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
) -> None:
    """Write blocks: their heads, and for each value its sign, the value, and its second value."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = block * BLOCK < values_count
    position = tl.load(ends + block, mask=exists, other=0) - tl.load(
        bits + block, mask=exists, other=0
    )
    position = write_head(words, position + base, parameters, block, exists)
    if HAS_SECOND:
        position = write_head(words, position, second_parameters, block, exists)
    j = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = j < values_count
    k = tl.load(parameters + block, mask=exists, other=0).to(tl.int64)[:, None]
    value = tl.load(values + j, mask=inside, other=0).to(tl.int64)
    length = (value >> k) + k + 1
    if HAS_SIGN:
        length += 1
    if HAS_SECOND:
        second_k = tl.load(second_parameters + block, mask=exists, other=0).to(tl.int64)[:, None]
        second = tl.load(seconds + j, mask=inside, other=0).to(tl.int64)
        length += (second >> second_k) + second_k + 1
    length = tl.where(inside, length, 0)
    at = position[:, None] + tl.cumsum(length, 1) - length
    if HAS_SIGN:
        negative = tl.load(signed + j, mask=inside, other=0) < 0
        write_bits(words, at, negative.to(tl.uint64), inside & negative)
        at += 1
    write_rice(words, at, value, k, inside)
    if HAS_SECOND:
        write_rice(words, at + (value >> k) + k + 1, second, second_k, inside)
