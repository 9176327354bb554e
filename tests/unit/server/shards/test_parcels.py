"""Payloads between processes: in the arena for as long as somebody has not taken them."""

import os
from collections.abc import Iterator
from random import Random

import pytest

from gradwire_protocol import ShapedMessage
from gradwire_server.shards.arena import GRAIN_BYTES, Arena
from gradwire_server.shards.parcels import Inbox, Outbox, Parcel
from gradwire_server.shards.records import INLINE_BYTES_MAX

LONG = Random(1).randbytes(10_000)
SHORT = Random(2).randbytes(INLINE_BYTES_MAX)


@pytest.fixture
def arena() -> Iterator[Arena]:
    descriptor = Arena.new_file("test", 4 * GRAIN_BYTES)
    yield Arena(descriptor)
    os.close(descriptor)


def message_of(payload: bytes) -> ShapedMessage:
    return ShapedMessage.of(1, 2, 3, payload, 1_356)


@pytest.mark.parametrize("shape", [bytes, message_of])
def test_a_long_one_lies_in_the_arena(arena: Arena, shape: type) -> None:
    parcel = Parcel(arena, shape(LONG))

    assert parcel.place == (0, len(LONG))
    assert Inbox(arena).payload_at(parcel.place) == LONG


@pytest.mark.parametrize("shape", [bytes, message_of])
def test_a_short_one_is_its_own_place(arena: Arena, shape: type) -> None:
    parcel = Parcel(arena, shape(SHORT))

    assert parcel.place == SHORT
    assert len(arena.room) == 0


@pytest.mark.parametrize("shape", [bytes, message_of])
def test_one_that_finds_no_room_is_its_own_place(arena: Arena, shape: type) -> None:
    Parcel(arena, LONG)

    parcel = Parcel(arena, shape(LONG))

    assert parcel.place == LONG
    parcel.release()
    assert len(arena.room) == 1


def test_it_stays_until_everyone_it_goes_to_has_taken_it(arena: Arena) -> None:
    one, other = Outbox(), Outbox()
    parcel = Parcel(arena, LONG)
    one.add_parcel(parcel)
    other.add_parcel(parcel)
    parcel.release()

    one.on_taken(1)
    still_there = len(arena.room)
    other.on_taken(1)

    assert still_there == 1
    assert len(arena.room) == 0
    assert len(one) == len(other) == 0


def test_what_is_its_own_place_need_not_be_taken(arena: Arena) -> None:
    outbox, inbox = Outbox(), Inbox(arena)

    payload = inbox.payload_at(outbox.add_parcel(Parcel(arena, SHORT)))

    assert payload == SHORT
    assert len(outbox) == 0
    assert inbox.taken == 0


def test_they_are_taken_in_the_order_in_which_they_were_named(arena: Arena) -> None:
    outbox, inbox = Outbox(), Inbox(arena)
    first, second = Parcel(arena, b"1" * 5_000), Parcel(arena, b"2" * 5_000)
    places = [outbox.add_parcel(first), outbox.add_parcel(second)]
    first.release()
    second.release()

    inbox.payload_at(places[0])
    outbox.on_taken(inbox.taken)

    assert inbox.payload_at(places[1]) == b"2" * 5_000
    assert Parcel(arena, b"3" * 5_000).place == (0, 5_000)


def test_what_nobody_will_take_is_free(arena: Arena) -> None:
    outbox = Outbox()
    for _ in range(2):
        parcel = Parcel(arena, b"x" * 5_000)
        outbox.add_parcel(parcel)
        parcel.release()

    outbox.clear()

    assert len(arena.room) == 0
