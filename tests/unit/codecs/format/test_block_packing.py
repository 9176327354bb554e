"""Packing: blocks come back as they were, in fewer bytes where they can, and never in more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import CodecError, pack_block, unpack_block
from gradwire_codecs.arrays import Int32Array

ANY = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=200)
SMALL = st.lists(st.integers(-3, 3), min_size=1, max_size=200)


def array(values: list[int]) -> Int32Array:
    return np.array(values, np.int32)


@given(values=ANY | SMALL | st.sampled_from([-(2**31), 2**31 - 1, 0]).map(lambda x: [x] * 65))
def test_what_was_packed_is_unpacked(values: list[int]) -> None:
    block = array(values)

    packed = pack_block(block)

    assert unpack_block(packed, len(block)) == block.astype("<i4").tobytes()
    assert len(packed) <= 4 * len(block)


def test_what_is_zero_or_small_takes_little() -> None:
    random = np.random.default_rng(1)
    layer = random.normal(0, 0.02, 2**18).astype(np.float32)

    assert len(pack_block(np.zeros(2**18, np.int32))) == 2**18 // 64
    assert len(pack_block((layer * 2**24).astype(np.int32))) < 0.68 * 2**20


@given(body=st.binary(max_size=300), elements=st.integers(1, 200))
def test_whatever_comes_is_a_block_or_an_error(body: bytes, elements: int) -> None:
    try:
        block = unpack_block(body, elements)
    except CodecError:
        return
    assert len(block) == 4 * elements


@given(values=SMALL, data=st.data())
def test_a_part_or_more_than_a_block_is_an_error(values: list[int], data: st.DataObject) -> None:
    packed = pack_block(array(values))
    cut = data.draw(st.integers(0, len(packed) - 1))

    for wrong in (packed[:cut], packed + b"\0"):
        if len(wrong) != 4 * len(values):
            with pytest.raises(CodecError):
                unpack_block(wrong, len(values))


def test_no_element_has_more_than_32_bits() -> None:
    with pytest.raises(CodecError):
        unpack_block(b"\x21" + bytes(5), 1)
