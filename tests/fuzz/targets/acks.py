"""Acknowledgements: the input says which of the packets we sent are acknowledged, and when.

A frame of random numbers hardly ever acknowledges what was sent, so here each step is a few small
numbers: how long it takes, and the gaps and runs from the newest packet downwards. The bytes in
flight never leave their bounds, a message is delivered at most once, and who acknowledges what was
never sent is thrown out.
"""

from collections.abc import Iterable
from typing import Final

from fuzz.reading import Reader
from gradwire_protocol import Connection, MessageDelivered, Priority, State
from gradwire_protocol.limits import WINDOW_BYTES
from gradwire_protocol.wire.frames import Ack, pack_ack
from support.acks import ack
from support.endpoints import PLAIN
from support.puppet import Puppet

BYTES_MAX: Final = 256
STEPS_MAX: Final = 8
RANGES_MAX: Final = 8
MESSAGES: Final = 3
MESSAGE_BYTES: Final = 8_000
"""With headers, more than the first window: acknowledgements let more leave."""

SECONDS: Final = 0.002
"""Unit of the time between steps: 255 of them are several probe timeouts."""


def check(data: bytes) -> None:
    """Let a connection receive acknowledgements."""
    reader = Reader(data)
    puppet = Puppet(PLAIN)
    connection = puppet.connection
    for number in range(MESSAGES):
        connection.send(1, number, 1, bytes(MESSAGE_BYTES), Priority.UPDATE)
    delivered: list[int] = []
    puppet.receive()
    for _ in range(STEPS_MAX):
        if not reader or connection.state is not State.OPEN:
            break
        puppet.wait(puppet.now + SECONDS * reader.integer(1))
        ack = _read_ack(reader, max((stop for _, stop in puppet.came), default=1) - 1)
        sent = all(puppet.has(first, last) for first, last in ack.ranges)
        puppet.send(pack_ack(ack))
        assert sent or connection.state is not State.OPEN, "believes what was never sent"
        check_bounds(connection)
        puppet.receive()
        check_bounds(connection)
        delivered += [e.number for e in puppet.events() if isinstance(e, MessageDelivered)]
    assert len(delivered) == len(set(delivered)) <= MESSAGES


def check_bounds(connection: Connection) -> None:
    """Compare a connection with what can be."""
    assert 0 <= connection.bytes_queued <= MESSAGES * MESSAGE_BYTES
    assert 0 <= connection.bytes_in_flight <= WINDOW_BYTES
    assert connection.state is not State.OPEN or connection.next_timer() is not None


def _read_ack(reader: Reader, newest: int) -> Ack:
    """Return an acknowledgement: of the newest packets, one more, and all between gaps."""
    marked, n = divmod(reader.integer(1), RANGES_MAX)
    last = max(newest + 1 - reader.integer(1), 0)
    ranges = []
    for _ in range(n + 1):
        first = max(last - reader.integer(1), 0)
        ranges.append((first, last))
        last = first - 2 - reader.integer(1)
        if last < 0:
            break
    return ack(*ranges, credit=2**30, marked=marked)


def seeds() -> Iterable[bytes]:
    """Return peers that acknowledge everything, in pieces, late, twice, and too much."""
    yield bytes([5, 0, 1, 255, 0] * 6)
    yield bytes([5, 1, 1, 0, 0, 5, 0] * 6)
    yield bytes([5, 3, 4, 1, 1, 1, 1, 1, 1, 2, 0] * 4)
    yield bytes([255, 0, 1, 0, 0] * 8)
    yield bytes([5, 8, 1, 9, 0, 5, 250, 1, 9, 0])
    yield bytes([5, 0, 0, 0, 0])
