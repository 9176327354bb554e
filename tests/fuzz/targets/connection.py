"""A connection: the input is what an authentic, hostile peer sends, packet by packet.

Each step is a byte of how, two of a length, and so many bytes of frames; they are sealed as the
peer would. Whatever it sends ends at worst in a violation: the connection holds no more than its
window, says nothing to an address beyond what that has earned, and hands over no message twice.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fuzz.reading import Reader, steps
from gradwire_protocol import Connection, Disconnected, MessageReceived, Priority, State
from gradwire_protocol.connection.train import ECN_MARKED, ECN_NOT
from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.limits import (
    AMPLIFICATION_MAX,
    FRAGMENT_BYTES_MIN,
    MESSAGE_BYTES_MAX,
    WINDOW_BYTES_MIN,
)
from gradwire_protocol.messages.kinds import CONTROL_STREAM, Kind
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import Finish
from gradwire_protocol.wire.frames import (
    pack_ack,
    pack_challenge,
    pack_close,
    pack_credit,
    pack_ping,
    pack_response,
)
from support.acks import ack
from support.endpoints import PLAIN
from support.pair import data_frame
from support.puppet import Puppet

BYTES_MAX: Final = 4_096
STEPS_MAX: Final = 24
MOVED: Final = "moved"
PAUSES: Final = (0.0, 0.001, 0.1, 20.0)
"""Seconds after a step."""

# How, by bits: two of the pause, then
AGAIN: Final = 0x04
"""with the number of the packet before;"""
BEHIND: Final = 0x08
"""with one before that;"""
FROM_ELSEWHERE: Final = 0x10
MARKED: Final = 0x20
FLAGGED: Final = 0x40
"""with a flag that says that one DATA frame is all;"""
TRAIN: Final = 0x80
"""six times in one read, with consecutive numbers."""
TRAIN_PACKETS: Final = 6

CONFIG: Final = replace(PLAIN, window_bytes=WINDOW_BYTES_MIN)


def check(data: bytes) -> None:
    """Let a connection receive packets."""
    reader = Reader(data)
    puppet = Puppet(CONFIG)
    connection = puppet.connection
    connection.send(0, 0, 1, bytes(4_000), Priority.UPDATE)
    heard = set[tuple[int, int]]()
    for _ in range(STEPS_MAX):
        if not reader:
            break
        how = reader.integer(1)
        deliver(puppet, how, reader.piece())
        check_bounds(puppet, connection)
        take_events(puppet, connection, heard)
        puppet.wait(puppet.now + PAUSES[how % len(PAUSES)])
        check_bounds(puppet, connection)
    take_events(puppet, connection, heard)


def deliver(puppet: Puppet, how: int, frames: bytes) -> None:
    """Let packets come."""
    number = max(puppet.next_number - bool(how & AGAIN) - 2 * bool(how & BEHIND), 0)
    flags = 1 if how & FLAGGED else 0
    packets = [
        puppet.pack(frames, number=number + i, flags=flags)
        for i in range(TRAIN_PACKETS if how & TRAIN else 1)
    ]
    puppet.deliver(
        *packets,
        address=MOVED if how & FROM_ELSEWHERE else Puppet.ADDRESS,
        ecn=ECN_MARKED if how & MARKED else ECN_NOT,
    )


def check_bounds(puppet: Puppet, connection: Connection) -> None:
    """Compare a connection with what it promises."""
    assert 0 <= connection.bytes_held <= WINDOW_BYTES_MIN
    assert connection.bytes_in_flight >= 0
    assert 0 <= connection.bytes_queued <= 4_000
    if connection.address != MOVED:
        earned = AMPLIFICATION_MAX * puppet.bytes_from[MOVED]
        assert puppet.bytes_to[MOVED] <= earned, "an address got more than it has earned"


def take_events(puppet: Puppet, connection: Connection, heard: set[tuple[int, int]]) -> None:
    """Read messages as master and worker do."""
    link = Link(connection)
    for event in puppet.events():
        if isinstance(event, MessageReceived):
            name = event.stream, event.number
            assert name not in heard, f"message {name} came twice"
            heard.add(name)
            try:
                link.receive(event)
            except InvalidMessageError:
                connection.close(6, "invalid", puppet.now)
        elif isinstance(event, Disconnected):
            assert connection.state is not State.OPEN


def seeds() -> Iterable[bytes]:
    """Return what peers send: messages, acknowledgements, and what moves or ends a connection."""
    finish = data_frame(Finish(7).pack(), stream=CONTROL_STREAM, kind=Kind.FINISH)
    first = data_frame(b"p" * FRAGMENT_BYTES_MIN, total=2_000, fragment_bytes=FRAGMENT_BYTES_MIN)
    second = data_frame(b"p" * (2_000 - FRAGMENT_BYTES_MIN), index=1, total=2_000,
                        fragment_bytes=FRAGMENT_BYTES_MIN)  # fmt: skip
    again = data_frame(b"p" * 1_200, total=2_000, fragment_bytes=1_200, shape=1)
    large = data_frame(b"p" * FRAGMENT_BYTES_MIN, total=MESSAGE_BYTES_MAX,
                       fragment_bytes=FRAGMENT_BYTES_MIN)  # fmt: skip
    acks = [pack_ack(ack((0, last), credit=2**30)) for last in (0, 1, 3, 2**40)]
    yield steps((0, finish), (AGAIN, finish), (1, pack_ping()))
    yield steps((0, first), (2, acks[0]), (0, second), (0, second))
    yield steps((0, first), (FLAGGED, second))
    yield steps((TRAIN | FLAGGED, first), (1, again))
    yield steps((0, large), (3, pack_ping()), (3, acks[1] + pack_credit(2**40)))
    yield steps((2, acks[1]), (2, acks[2]), (2, acks[3]))
    yield steps((FROM_ELSEWHERE | 1, pack_ping()), (FROM_ELSEWHERE, pack_response(bytes(8))))
    yield steps((MARKED, pack_challenge(b"12345678") * 3), (TRAIN | 1, pack_ping()))
    yield steps((0, pack_close(64, "left")), (3, pack_ping()))
    yield steps((BEHIND, pack_ping()), (0, b"\x07unknown"))
