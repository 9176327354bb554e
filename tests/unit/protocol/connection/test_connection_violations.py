"""What a peer must not do to a connection, and what a stranger cannot."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, Disconnected, Drop, Priority, State
from gradwire_protocol.limits import (
    ACK_RANGES_MAX,
    FRAGMENT_BYTES_MAX,
    FRAGMENT_BYTES_MIN,
    MESSAGE_BYTES_MAX,
)
from gradwire_protocol.wire.frames import Close, pack_ack, pack_ping
from gradwire_protocol.wire.packets import TRANSPORT
from support.acks import ack
from support.endpoints import hand_over
from support.pair import FRAGMENT_BYTES, RESPONDER, Pair, data_frame
from support.puppet import Puppet
from support.wording import naming

U16 = st.integers(0, 5) | st.integers(0, 2**16 - 1)


def raw_ack(largest: int, first_run: int, ranges: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return an ACK frame with whatever numbers in its fields."""
    packed = struct.pack("<BBHIQQI", 0x02, len(ranges), 0, first_run, largest, 0, 0)
    return packed + b"".join(struct.pack("<HH", gap, run) for gap, run in ranges)


# Violations.


@pytest.mark.parametrize(
    ("frames", "flags", "named"),
    [
        ([b"\x07"], 0, ("0x07",)),
        (
            [data_frame(b"x", total=MESSAGE_BYTES_MAX + 1)],
            0,
            ("message", MESSAGE_BYTES_MAX + 1, 1, MESSAGE_BYTES_MAX),
        ),
        (
            [data_frame(bytes(FRAGMENT_BYTES), total=total) for total in (3000, 3001)],
            0,
            ("message 0", "stream 0", 3000, 3001, "kind 1"),
        ),
        ([data_frame(b"x", total=3000)], 0, ("fragment 0", 3000, "short")),
        (
            [data_frame(bytes(1147), total=3000, fragment_bytes=1147)],
            0,
            ("fragments", 1147, FRAGMENT_BYTES_MIN, FRAGMENT_BYTES_MAX),
        ),
        (
            [
                data_frame(bytes(size), total=3000, fragment_bytes=size)
                for size in (1148, FRAGMENT_BYTES)
            ],
            0,
            ("fragments", 1148, FRAGMENT_BYTES, "message 0", "stream 0"),
        ),
        ([pack_ack(ack((99, 99)))], 0, ("acknowledgement", 99, 1)),
        (2 * [pack_ack(ack((0, 0)))], 0, ("two acknowledgements",)),
        *(
            ([pack_ping()], flags, ("flags", flags & 0xFF, "reserved", flags >> 8))
            for flags in (0x02, 0x80, 0x100, 0x8000)
        ),
    ],
)
def test_breaking_a_rule_ends_the_connection_and_both_sides_hear_which(
    frames: list[bytes], flags: int, named: tuple[object, ...]
) -> None:
    puppet = Puppet().opened()

    puppet.send(*frames, flags=flags)

    rule = naming(*named)
    assert puppet.events() == [Disconnected(CloseCode.VIOLATION, rule, by_peer=False)]
    assert puppet.receive() == [[Close(CloseCode.VIOLATION, rule)]]
    assert puppet.connection.state is State.CLOSING
    assert puppet.endpoint.counters.violations == 1


@given(
    seed=st.integers(0, 500),
    largest=st.integers(0, 30) | st.integers(0, 2**64 - 1),
    first_run=st.integers(0, 30) | st.integers(0, 2**32 - 1),
    ranges=st.lists(st.tuples(U16, U16), max_size=ACK_RANGES_MAX),
)
def test_whatever_an_acknowledgement_names_is_taken_or_a_violation(
    seed: int, largest: int, first_run: int, ranges: list[tuple[int, int]]
) -> None:
    puppet = Puppet(seed=seed)
    puppet.connection.send(0, 0, 1, bytes(10_000), Priority.UPDATE)
    puppet.receive()
    puppet.events()

    puppet.send(raw_ack(largest, first_run, ranges))

    lowest = largest - first_run
    named = [(lowest, largest)]
    for gap, run in ranges:
        named.append((lowest - gap - run - 2, lowest - gap - 2))
        lowest -= gap + run + 2
    if named[-1][0] >= 0 and all(puppet.has(first, last) for first, last in named):
        assert puppet.connection.state is State.OPEN
    else:
        [event] = puppet.events()
        assert isinstance(event, Disconnected)
        assert event.code == CloseCode.VIOLATION


def test_nothing_of_a_malformed_packet_is_used() -> None:
    puppet = Puppet().opened()

    puppet.send(data_frame(b"good"), b"\x07")

    assert [type(event) for event in puppet.events()] == [Disconnected]


def test_a_violation_after_the_end_is_counted_and_changes_nothing() -> None:
    puppet = Puppet().opened()
    puppet.connection.close(64, "enough", puppet.now)

    puppet.send(b"\x07")

    assert puppet.endpoint.counters.violations == 1
    assert puppet.events() == []
    assert puppet.wait(puppet.now + 10.0) == [[Close(64, "enough")]] * 3


# Strangers.


def test_packets_are_dropped_under_the_right_reason() -> None:
    puppet = Puppet()
    counters = puppet.endpoint.counters
    good = puppet.pack(pack_ping())
    accepted = counters.packets_accepted

    puppet.deliver(good)
    puppet.deliver(good)
    puppet.deliver(good[:-1])
    puppet.deliver(good[:-1] + bytes([good[-1] ^ 1]))
    puppet.deliver(good[:4] + b"\xff\xff\xff\xff" + good[8:])

    assert counters.packets_accepted == accepted + 1
    assert {reason: n for reason, n in counters.drops.items() if n} == {
        Drop.DUPLICATE: 1,
        Drop.NOT_AUTHENTIC: 2,
        Drop.UNKNOWN_SESSION: 1,
    }


def test_a_packet_before_the_answer_to_the_init_is_a_strangers() -> None:
    pair = Pair().dial()
    connection = pair.initiator.connection
    packet = bytes([TRANSPORT, 0, 0, 0]) + connection.session_id.to_bytes(4, "little") + bytes(20)

    hand_over(pair.initiator.endpoint, [packet], RESPONDER, pair.network.now)

    assert pair.initiator.endpoint.counters.drops[Drop.UNKNOWN_SESSION] == 1
    assert connection.state is State.CONNECTING
