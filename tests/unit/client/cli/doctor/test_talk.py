"""What is sent to measure a rate is bounded in bytes and in time."""

from typing import Any, cast

import pytest

from gradwire.cli.doctor.talk import (
    FILL,
    RATE_BYTES,
    RATE_SECONDS,
    UNDER_WAY_BYTES,
    Filler,
    TalkKind,
)
from gradwire_protocol import Connection


class Sent:
    """A connection that notes what it is to send."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def send(self, stream: int, number: int, kind: int, payload: Any, priority: Any) -> None:
        """Note a message."""
        assert kind == TalkKind.FILL
        assert payload is FILL
        self.numbers.append(number)


@pytest.fixture
def sent() -> Sent:
    return Sent()


def filling(sent: Sent) -> Filler:
    filler = Filler(cast("Connection", sent), 100.0)
    filler.fill(100.0)
    return filler


def test_no_more_is_under_way_than_may_be(sent: Sent) -> None:
    filling(sent)

    assert len(sent.numbers) * len(FILL) == UNDER_WAY_BYTES


def test_it_ends_with_the_bytes(sent: Sent) -> None:
    filler = filling(sent)

    at = 0
    while not filler.over:
        filler.on_delivered(sent.numbers[at], 100.5)
        at += 1

    assert filler.delivered_bytes == RATE_BYTES == at * len(FILL)
    assert len(set(sent.numbers)) == at, "every message has a number of its own"
    assert filler.seconds == 0.5


def test_it_ends_with_the_time(sent: Sent) -> None:
    filler = filling(sent)
    before = len(sent.numbers)

    for number in list(sent.numbers):
        filler.on_delivered(number, 100.0 + RATE_SECONDS)

    assert filler.over
    assert len(sent.numbers) == before
    assert filler.delivered_bytes == before * len(FILL)
