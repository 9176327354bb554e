"""Connections in another process: to a master they are like its own."""

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import (
    AddressChanged,
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    MessageDelivered,
    MessageReceived,
    Priority,
    ShapedMessage,
    State,
)
from gradwire_protocol.crypto.keys import SECRET_BYTES, Identity, Role, RunKey
from gradwire_server.shards.arena import Arena
from gradwire_server.shards.figures import ConnectionFigures, Figures, pack_figures
from gradwire_server.shards.parcels import Outbox, Parcel
from gradwire_server.shards.records import Command, Record, Report
from gradwire_server.shards.remote import Parcels, RemoteShard

ADDRESS = ("192.0.2.1", 40123)
LONG = Random(1).randbytes(10_000)
UPDATE = Priority.UPDATE


class Sent:
    """In place of a channel, what was posted."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.flushed = 0

    def post(self, *record: object) -> None:
        self.records.append(record)

    def flush(self) -> None:
        self.flushed = len(self.records)

    def take(self) -> list[Record]:
        taken, self.records = self.records, []
        return taken


class Rig:
    """Process 0's side of some shards, with what it says and what its application hears."""

    def __init__(self, shards: int = 1) -> None:
        self.files = [Arena.new_file(f"test-{i}") for i in range(shards + 1)]
        arenas = [Arena(descriptor) for descriptor in self.files]
        self.arena = arenas[0]
        self.events: list[tuple[Any, Event]] = []
        self.refusal: str | None = None
        self.identity: tuple[str, int, bytes] | None = None
        self.parcels = Parcels(self.arena)
        self.sent = [Sent() for _ in range(shards)]
        self.shards = [
            RemoteShard(self.parcels, arena, sent, self.report, lambda: self.refusal)
            for arena, sent in zip(arenas[1:], self.sent, strict=True)
        ]
        # The shards' side of the same memory.
        self.arenas = [Arena(descriptor) for descriptor in self.files[1:]]

    def report(self, connection: Connection, event: Event) -> None:
        self.events.append((connection, event))

    def connect(self, number: int, shard: int = 0) -> Any:
        self.shards[shard].handle([(Report.CONNECTED, number, ADDRESS, self.identity)])
        return self.events[-1][0]

    def hear(self, *records: Record, shard: int = 0) -> None:
        """Let a shard report something."""
        self.shards[shard].handle(records)

    def said(self, shard: int = 0) -> list[Record]:
        self.shards[shard].flush()
        self.parcels.release()
        return self.sent[shard].take()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(2)
    yield rig
    for descriptor in rig.files:
        os.close(descriptor)


def message(payload: bytes = LONG, number: int = 7) -> ShapedMessage:
    return ShapedMessage.of(3, number, 6, payload, 1_356)


# What a shard reports.


def test_a_connection_is_reported_with_where_its_peer_is(rig: Rig) -> None:
    connection = rig.connect(0)

    assert rig.events == [(connection, Connected())]
    assert (connection.state, connection.address) == (State.OPEN, ADDRESS)
    assert (connection.rtt, connection.bytes_queued, connection.bytes_held) == (None, 0, 0)
    assert len(rig.shards[0]) == 1


def test_a_connection_is_whose_the_shard_says_it_is(rig: Rig) -> None:
    key = RunKey(bytes(SECRET_BYTES)).worker_key("gpu7", Role.OBSERVER)
    nobody = rig.connect(0)
    rig.identity = ("gpu7", int(Role.OBSERVER), key.key_id)

    somebody = rig.connect(1)

    assert nobody.identity is None
    assert somebody.identity == Identity("gpu7", Role.OBSERVER, key.key_id)


def test_a_message_is_reported_as_it_came_and_its_place_given_back(rig: Rig) -> None:
    connection = rig.connect(0)
    parcel = Parcel(rig.arenas[0], message())

    place = Outbox().add_parcel(parcel)
    rig.hear((Report.RECEIVED, 0, place, 3, 7, 6, 1_356, 10_512))

    event = rig.events[-1][1]
    assert isinstance(event, MessageReceived)
    rig.arenas[0].at(0, len(LONG))[:] = bytes(len(LONG))  # it is the shard's again
    assert (event.stream, event.number, event.kind, event.charge) == (3, 7, 6, 10_512)
    assert event.payload == LONG
    assert event.message.fragment_bytes == 1_356
    assert rig.said() == [(Command.TAKEN, 1)]
    assert rig.events[-1][0] is connection


def test_a_short_message_has_no_place_to_give_back(rig: Rig) -> None:
    rig.connect(0)

    rig.hear((Report.RECEIVED, 0, b"short", 3, 7, 6, 1_356, 517))

    event = rig.events[-1][1]
    assert isinstance(event, MessageReceived)
    assert event.payload == b"short"
    assert rig.said() == []


def test_a_peer_that_moves_is_reported_where_it_is_now(rig: Rig) -> None:
    connection = rig.connect(0)

    rig.hear((Report.MOVED, 0, ("192.0.2.2", 9)))

    assert rig.events[-1] == (connection, AddressChanged(("192.0.2.2", 9)))
    assert connection.address == ("192.0.2.2", 9)


def test_a_connection_that_ends_is_reported_and_then_nothing_has_an_effect(rig: Rig) -> None:
    connection = rig.connect(0)
    connection.relay(message(), UPDATE)
    rig.said()

    rig.hear((Report.DISCONNECTED, 0, CloseCode.IDLE, "silence", False))
    connection.relay(message(number=8), UPDATE)
    connection.send(1, 2, 3, b"x", UPDATE)
    connection.release(10)
    connection.close(64, "bye", 0.0)

    assert rig.events[-1] == (connection, Disconnected(CloseCode.IDLE, "silence", False))
    assert (connection.state, connection.bytes_queued) == (State.CLOSED, 0)
    assert len(rig.shards[0]) == 0
    assert rig.said() == []


def test_who_finds_no_room_is_told_so_and_not_reported(rig: Rig) -> None:
    rig.refusal = "no room: 64 connections are open"

    rig.hear((Report.CONNECTED, 0, ADDRESS, None))

    assert rig.events == []
    assert rig.said() == [(Command.CLOSE, 0, CloseCode.FULL, rig.refusal)]


def test_figures_are_those_told_last(rig: Rig) -> None:
    connection = rig.connect(4)
    counted = Figures()
    counted.counters.packets_lost = 9
    plain = pack_figures(counted, {})

    rig.shards[0].handle([(Report.FIGURES, (*plain[:3], [(4, 0.25, 3_000), (5, 1, 2)]))])

    assert (connection.rtt, connection.bytes_held) == (0.25, 3_000)
    assert rig.shards[0].figures == counted
    assert rig.shards[0].answered == 1


def test_it_says_when_it_is_ready_and_quiet_and_what_it_logs(rig: Rig) -> None:
    shard = rig.shards[0]
    lines: list[tuple[int, str, str]] = []
    shard.log = lambda *line: lines.append(line)
    before = (shard.ready, shard.quiet)

    shard.handle([(Report.READY,), (Report.LOG, 30, "gradwire.udp", "slow"), (Report.QUIET,)])

    assert before == (False, False)
    assert (shard.ready, shard.quiet) == (True, True)
    assert lines == [(30, "gradwire.udp", "slow")]


# What a master says.


def test_a_message_is_sent_by_its_name_and_priority(rig: Rig) -> None:
    connection = rig.connect(5)

    connection.send(9, 8, 7, b"short", Priority.CONTROL)
    connection.send(9, 9, 7, LONG, Priority.SNAPSHOT)

    assert rig.said() == [
        (Command.SEND, 5, b"short", 9, 8, 7, 0),
        (Command.SEND, 5, (0, len(LONG)), 9, 9, 7, int(Priority.SNAPSHOT)),
    ]
    assert rig.arena.at(0, len(LONG)) == LONG
    rig.hear((Report.TAKEN, 1))
    assert len(rig.arena.room) == 0


def test_a_message_to_many_lies_in_memory_once_until_all_shards_have_taken_it(rig: Rig) -> None:
    connections = [rig.connect(n, shard) for shard in (0, 1) for n in (0, 1, 2)]
    update = message()

    for connection in connections:
        connection.relay(update, UPDATE)

    command = (Command.RELAY, [0, 1, 2], (0, len(LONG)), 3, 7, 6, int(UPDATE), 1_356)
    assert rig.said(0) == [command]
    assert rig.said(1) == [command]
    rig.hear((Report.TAKEN, 1))
    assert len(rig.arena.room) == 1
    rig.hear((Report.TAKEN, 1), shard=1)
    assert len(rig.arena.room) == 0


def test_messages_and_everything_else_stay_in_the_order_they_were_said_in(rig: Rig) -> None:
    one, other = rig.connect(0), rig.connect(1)
    first, second = message(b"first"), message(b"second", 8)

    one.relay(first, UPDATE)
    other.relay(second, UPDATE)
    one.relay(second, UPDATE)
    one.send(1, 1, 1, b"x", UPDATE)
    other.relay(second, Priority.SNAPSHOT)
    other.close(64, "bye", 0.0)

    assert [record[:3] for record in rig.said()] == [
        (Command.RELAY, [0], b"first"),
        (Command.RELAY, [1, 0], b"second"),
        (Command.SEND, 0, b"x"),
        (Command.RELAY, [1], b"second"),
        (Command.CLOSE, 1, 64),
    ]


def test_one_that_was_taken_by_all_so_far_can_still_go_to_others(rig: Rig) -> None:
    one, other = rig.connect(0, 0), rig.connect(0, 1)
    update = message()

    one.relay(update, UPDATE)
    rig.shards[0].flush()
    rig.hear((Report.TAKEN, 1))
    other.relay(update, UPDATE)

    place = rig.said(1)[0][2]
    assert rig.arena.at(*place) == LONG


def test_credit_is_given_back_once_for_a_connection(rig: Rig) -> None:
    one, other = rig.connect(0), rig.connect(1)

    for connection, charge in ((one, 600), (other, 700), (one, 50)):
        connection.release(charge)

    assert rig.said() == [(Command.RELEASE, [(0, 650), (1, 700)])]
    assert rig.said() == []


def test_who_is_closed_is_not_heard_any_more(rig: Rig) -> None:
    connection = rig.connect(0)
    connection.relay(message(), UPDATE)
    connection.close(64, "bye", 0.0)
    said = rig.said()
    heard = len(rig.events)
    parcel = Parcel(rig.arenas[0], message())

    rig.shards[0].handle(
        [
            (Report.DELIVERED, 0, 3, 7),
            (Report.MOVED, 0, ADDRESS),
            (Report.RECEIVED, 0, Outbox().add_parcel(parcel), 3, 7, 6, 1_356, 10_512),
        ]
    )
    connection.close(64, "bye again", 0.0)
    while_closing = len(rig.shards[0])
    rig.hear((Report.GONE, 0))

    assert said[-1] == (Command.CLOSE, 0, 64, "bye")
    assert rig.events[heard:] == []
    assert connection.bytes_queued == 0
    assert rig.said() == [(Command.TAKEN, 1)]
    assert (while_closing, len(rig.shards[0])) == (1, 0)


def test_a_close_that_crosses_an_end_is_not_waited_for(rig: Rig) -> None:
    connection = rig.connect(0)
    connection.close(64, "bye", 0.0)
    heard = len(rig.events)

    rig.hear((Report.DISCONNECTED, 0, CloseCode.LOST, "gone", False))

    assert rig.events[heard:] == []
    assert len(rig.shards[0]) == 0


@given(
    sizes=st.lists(st.integers(1, 20_000), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_what_is_queued_is_what_was_handed_over_less_what_was_delivered(
    sizes: list[int], order: Any
) -> None:
    rig = Rig()
    connection = rig.connect(0)
    queued = 0
    for number, size in enumerate(sizes):
        queued += size
        if size % 2:
            connection.relay(message(bytes(size), number), UPDATE)
        else:
            connection.send(3, number, 6, bytes(size), UPDATE)
        assert connection.bytes_queued == queued
    numbers = list(range(len(sizes)))
    order.shuffle(numbers)

    for number in numbers:
        rig.hear((Report.DELIVERED, 0, 3, number))
        queued -= sizes[number]
        assert connection.bytes_queued == queued
        assert rig.events[-1] == (connection, MessageDelivered(3, number))
    for descriptor in rig.files:
        os.close(descriptor)


# A shard that ends.


def test_with_a_shard_its_connections_end_and_nothing_of_it_stays(rig: Rig) -> None:
    one, other, closing = (rig.connect(n) for n in range(3))
    elsewhere = rig.connect(0, 1)
    update = message()
    for connection in (one, other, elsewhere):
        connection.relay(update, UPDATE)
    closing.close(64, "bye", 0.0)
    one.send(1, 1, 1, LONG, UPDATE)
    other.relay(message(number=8), UPDATE)
    heard = len(rig.events)

    rig.shards[0].lose("it has ended")
    rig.said(1)

    gone = Disconnected(CloseCode.LOST, "it has ended", by_peer=False)
    assert rig.events[heard:] == [(one, gone), (other, gone)]
    assert {c.state for c in (one, other, closing)} == {State.CLOSED}
    assert elsewhere.state is State.OPEN
    assert len(rig.arena.room) == 1, "what the other shard has not taken"
    rig.hear((Report.TAKEN, 1), shard=1)
    assert len(rig.arena.room) == 0


def test_figures_of_a_connection_outlive_it_but_for_what_it_holds(rig: Rig) -> None:
    connection = rig.connect(0)
    connection.figures = ConnectionFigures(0.5, 10)

    rig.shards[0].lose("it has ended")

    assert (connection.rtt, connection.bytes_held) == (0.5, 0)
