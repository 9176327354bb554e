"""Shared memory: what is taken is nobody else's, what is free is found, and all see the same."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gradwire_protocol import ShapedMessage
from gradwire_server.shards.arena import GRAIN_BYTES, Arena, Room, size_of

GRAINS = 32


class RoomMachine(RuleBasedStateMachine):
    """A room beside a list of its grains, each taken or not."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(GRAINS * GRAIN_BYTES)
        self.taken = [False] * GRAINS
        self.parts: dict[int, int] = {}

    @rule(size=st.integers(1, 9 * GRAIN_BYTES))
    def take(self, size: int) -> None:
        n = -(-size // GRAIN_BYTES)
        fits = [i for i in range(GRAINS - n + 1) if not any(self.taken[i : i + n])]

        start = self.room.allocate(size)

        assert start == (fits[0] * GRAIN_BYTES if fits else None)
        if start is not None:
            self.parts[start] = n
            self.mark(start, n, taken=True)

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        start = data.draw(st.sampled_from(sorted(self.parts)))

        self.room.free(start)

        self.mark(start, self.parts.pop(start), taken=False)

    @invariant()
    def it_knows_how_many_parts_are_taken(self) -> None:
        assert len(self.room) == len(self.parts)

    def teardown(self) -> None:
        for start in self.parts:
            self.room.free(start)
        assert self.room.allocate(GRAINS * GRAIN_BYTES) == 0, "everything is one gap again"

    def mark(self, start: int, n: int, *, taken: bool) -> None:
        first = start // GRAIN_BYTES
        self.taken[first : first + n] = [taken] * n


TestRoom = RoomMachine.TestCase


def test_a_room_of_nothing_has_no_room() -> None:
    assert Room(0).allocate(1) is None


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = Arena.new_file("test", 64 * GRAIN_BYTES)
    yield descriptor
    os.close(descriptor)


@given(
    payload=st.binary(min_size=1, max_size=40_000),
    fragment_bytes=st.integers(1_148, 8_864),
)
def test_what_one_puts_in_another_finds(payload: bytes, fragment_bytes: int) -> None:
    descriptor = Arena.new_file("test", 64 * GRAIN_BYTES)
    owner, reader = Arena(descriptor), Arena(descriptor)
    os.close(descriptor)
    message = ShapedMessage.of(1, 2, 3, payload, fragment_bytes)

    first, second = owner.store(message), owner.store(payload)

    assert first is not None
    assert second is not None
    assert reader.at(first, size_of(message)) == payload
    assert reader.at(second, size_of(payload)) == payload


def test_what_finds_no_room_is_told_so_and_changes_nothing(descriptor: int) -> None:
    arena = Arena(descriptor)
    start = arena.store(b"1" * 60 * GRAIN_BYTES)

    assert arena.store(b"2" * 5 * GRAIN_BYTES) is None
    assert start is not None
    assert bytes(arena.at(start, 3)) == b"111"
    assert arena.store(b"3" * 4 * GRAIN_BYTES) is not None


def test_an_arena_takes_memory_only_where_something_was_put(descriptor: int) -> None:
    arena = Arena(descriptor)

    before = os.fstat(descriptor).st_blocks
    for _ in range(10):
        start = arena.store(np.ones(3 * GRAIN_BYTES, np.uint8).data)
        assert start is not None
        arena.room.free(start)

    assert before == 0
    assert os.fstat(descriptor).st_blocks * 512 == 3 * GRAIN_BYTES
