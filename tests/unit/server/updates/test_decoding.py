"""Decoding on a thread: in the order of each origin, and at any time all that is of one of them."""

from collections.abc import Iterator
from functools import partial
from threading import Event

import numpy as np
import pytest

from gradwire_codecs import MalformedUpdateError, Update, decode
from gradwire_codecs.format.update import pack_update
from gradwire_server.updates.decoding import INLINE_BYTES_MAX, Decoded, ThreadDecoder
from support.waiting import SOON

ELEMENTS = 200_000


def body_of(elements: int) -> bytes:
    """Return an encoded update that changes so many elements."""
    index = np.arange(elements, dtype=np.uint32)
    count = np.where(index % 2, 1, -1).astype(np.int32)
    return pack_update(Update(0, ELEMENTS, 1, index, count))


SMALL, LARGE = body_of(10), body_of(150_000)
assert len(SMALL) < INLINE_BYTES_MAX < len(LARGE)


class Desk:
    """A decoder, and what it has delivered."""

    def __init__(self) -> None:
        self.ready = Event()
        self.decoder = ThreadDecoder(self.ready.set)
        self.delivered: list[str] = []
        self.results: list[Decoded] = []

    def give(self, origin: int, name: str, body: bytes = LARGE) -> None:
        self.decoder.decode(origin, body, ELEMENTS, partial(self.take, name))

    def take(self, name: str, decoded: Decoded) -> None:
        self.delivered.append(name)
        self.results.append(decoded)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.decoder.close()


def test_what_is_large_is_delivered_when_it_is_asked_for(desk: Desk) -> None:
    desk.give(0, "a")
    assert desk.delivered == []
    assert desk.ready.wait(SOON)

    desk.decoder.deliver()

    [update] = desk.results
    assert isinstance(update, Update)
    assert update.index.tolist() == decode(LARGE, ELEMENTS).index.tolist()


def test_what_is_no_update_is_delivered_as_what_is_wrong_with_it(desk: Desk) -> None:
    desk.give(0, "a", bytes(INLINE_BYTES_MAX + 1))

    desk.decoder.drain()

    assert isinstance(desk.results[0], MalformedUpdateError)


def test_an_origin_keeps_its_order_and_waits_for_no_other_one(desk: Desk) -> None:
    desk.give(0, "a1")
    desk.give(0, "a2", SMALL)
    desk.give(1, "b1", SMALL)
    assert desk.delivered == ["b1"]

    desk.decoder.drain()

    assert desk.delivered == ["b1", "a1", "a2"]


def test_who_is_called_for_one_origin_may_have_another_one(desk: Desk) -> None:
    desk.decoder.decode(0, LARGE, ELEMENTS, lambda _: desk.decoder.drain(1))
    desk.give(1, "b1")
    desk.give(0, "a2")
    desk.give(1, "b2")

    desk.decoder.drain(0)

    assert desk.delivered == ["b1", "b2", "a2"]
