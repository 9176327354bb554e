"""Large buffers are used again, but not while anybody can look at them."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire_protocol.delivery import buffer_pool
from gradwire_protocol.delivery.buffer_pool import (
    KEPT_BYTES_MAX,
    RECYCLED_BYTES_MIN,
    give_back,
    take,
)
from gradwire_protocol.limits import MIB

Buffer = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with nothing kept, and leave what was kept before."""
    monkeypatch.setattr(buffer_pool, "_kept", {})
    monkeypatch.setattr(buffer_pool, "_kept_bytes", 0)


def address_of(buffer: Buffer) -> int:
    """Return where in memory a buffer lies."""
    address: int = buffer.__array_interface__["data"][0]
    return address


@given(size=st.integers(1, 100_000) | st.integers(1, 4 * MIB))
def test_a_buffer_is_as_large_as_asked_for_and_hardly_larger(size: int) -> None:
    assert size <= len(take(size)) <= size + size // 4


@given(size=st.integers(RECYCLED_BYTES_MIN, 4 * MIB))
def test_a_buffer_that_nobody_looks_at_is_used_again(size: int) -> None:
    buffer = take(size)
    address = address_of(buffer)
    give_back(buffer, 1)
    del buffer

    assert address_of(take(size)) == address


@pytest.mark.parametrize(
    "look",
    [
        lambda buffer: buffer,
        lambda buffer: buffer[:10],
        lambda buffer: buffer.reshape(2, -1)[1, 5:],
        lambda buffer: buffer.data,
        lambda buffer: buffer[:100].view("<u4").data[3:],
    ],
    ids=["buffer", "slice", "rows", "memory", "memory of a view"],
)
def test_a_buffer_that_somebody_looks_at_is_not_given_to_others(
    look: Callable[[Buffer], object],
) -> None:
    buffer = take(RECYCLED_BYTES_MIN)
    address = address_of(buffer)
    seen = look(buffer)
    give_back(buffer, 1)
    del buffer

    assert address_of(take(RECYCLED_BYTES_MIN)) != address
    assert seen is not None


def test_a_small_buffer_is_not_kept() -> None:
    buffer = take(RECYCLED_BYTES_MIN - 1)
    assert len(buffer) == RECYCLED_BYTES_MIN - 1

    give_back(buffer, 1)

    assert buffer_pool._kept == {}


def test_no_more_is_kept_than_the_limit() -> None:
    buffers = [take(4 * MIB) for _ in range(KEPT_BYTES_MAX // (4 * MIB) + 3)]
    while buffers:
        buffer = buffers.pop()
        give_back(buffer, 1)

    kept = sum(len(b) for kept in buffer_pool._kept.values() for b in kept)
    assert kept == buffer_pool._kept_bytes == KEPT_BYTES_MAX
    take(4 * MIB)
    assert buffer_pool._kept_bytes == KEPT_BYTES_MAX - 4 * MIB
