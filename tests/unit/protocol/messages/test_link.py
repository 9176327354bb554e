"""Messages over a connection: each in its stream, control messages in order."""

from collections.abc import Callable
from typing import Any

import pytest

from gradwire_protocol import InvalidMessageError, MessageReceived
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.kinds import (
    CONTROL_STREAM,
    LOG_STREAM,
    LOGGED_STREAM,
    RANK_END,
    SNAPSHOT_STREAM,
    Kind,
)
from gradwire_protocol.messages.link import (
    CONTROL_RECORDS,
    EntriesReceived,
    Message,
    UpdateReceived,
)
from gradwire_protocol.messages.link import Link as MessageLink
from gradwire_protocol.messages.logged.histograms import HISTOGRAM, Histograms
from gradwire_protocol.messages.logged.scalars import POINT, Logged
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.schema import Record
from gradwire_protocol.messages.updates import EncodedUpdate, Entries, Finish
from support.network import Link
from support.pair import FRAGMENT_BYTES, Pair, data_frame
from support.puppet import Puppet
from support.records import EXAMPLES, SPAN
from support.wording import naming

BLOCK = Snapshot(0, bytes(4))
HISTOGRAMS = Histograms(1, 5, ("weight",), bytes(HISTOGRAM.itemsize), 0)
LOGGED = Logged(1, ("loss",), bytes(POINT.itemsize), 0)
CONTROLS: tuple[Any, ...] = tuple(
    example for example in EXAMPLES if type(example) in CONTROL_RECORDS.values()
)


class Talk:
    """A link whose other end is a puppet."""

    def __init__(self) -> None:
        self.puppet = Puppet().opened()
        self.link = MessageLink(self.puppet.connection)

    def receive(self, payload: bytes, *, stream: int, number: int, kind: int) -> list[Message]:
        """Receive a message; return those whose turn it is."""
        self.puppet.send(data_frame(payload, stream=stream, number=number, kind=kind))
        [event] = self.puppet.events()
        assert isinstance(event, MessageReceived)
        return self.link.receive(event)


class Conversation:
    """A link at each end of a network."""

    def __init__(self, wire: Link) -> None:
        self.pair = Pair(wire, seed=1).connect()
        self.pair.responder.releases = False  # the link does it
        self.sending = MessageLink(self.pair.initiator.connection)
        self._receiving = MessageLink(self.pair.responder.connection)

    def turn(self) -> None:
        self.pair.network.turn(self.pair.initiator.host)

    def received(self, n: int) -> tuple[list[MessageReceived], list[Message]]:
        """Wait for `n` messages; return them as they came and as they were read."""
        self.pair.network.run(lambda: len(self.pair.responder.messages) == n, seconds=60)
        events = self.pair.responder.messages
        return events, [m for event in events for m in self._receiving.receive(event)]


def test_control_messages_arrive_in_order_over_a_bad_network() -> None:
    conversation = Conversation(Link(loss=0.2, jitter=0.05, duplication=0.1))

    for record in CONTROLS * 5:
        conversation.sending.send(record)
        conversation.turn()
    events, messages = conversation.received(5 * len(CONTROLS))

    numbers = [event.number for event in events]
    assert sorted(numbers) == [*range(5 * len(CONTROLS))]
    assert numbers != sorted(numbers), "or this would test nothing"
    assert messages == list(CONTROLS) * 5
    assert conversation.pair.responder.connection.bytes_held == 0


def test_entries_in_one_message_go_to_two_members_under_the_same_number() -> None:
    entries = Entries(12, b"body" * 1000, SPAN)
    shared = ShapedMessage.of(LOG_STREAM, 7, Kind.ENTRIES, entries.pack(), FRAGMENT_BYTES)

    for _ in range(2):
        member = Conversation(Link())
        member.sending.send_entries(shared)
        member.turn()
        _, messages = member.received(1)
        assert messages == [EntriesReceived(entries, 7)]


def test_entries_for_one_peer_alone_are_numbered_from_the_first_one_on() -> None:
    conversation = Conversation(Link())
    both = [Entries(12, b"first part", None), Entries(12, b"last part", SPAN)]

    for entries in both:
        conversation.sending.send_log(entries)
    conversation.turn()
    _, messages = conversation.received(2)

    assert messages == [EntriesReceived(entries, number) for number, entries in enumerate(both)]


@pytest.mark.parametrize(
    ("send", "messages", "stream", "told"),
    [
        (MessageLink.send, [Finish(5), Finish(6), Finish(7)], CONTROL_STREAM, [0, 1, 2]),
        (
            MessageLink.send_block,
            [Snapshot(start, bytes(4)) for start in (0, 1)],
            SNAPSHOT_STREAM,
            [None, None],
        ),
        (MessageLink.send_logged, [LOGGED, LOGGED], LOGGED_STREAM, [None, None]),
    ],
)
def test_messages_of_a_kind_are_numbered_in_a_stream_of_their_own(
    send: Callable[[MessageLink, Any], int | None],
    messages: list[Any],
    stream: int,
    told: list[int | None],
) -> None:
    conversation = Conversation(Link())

    numbers = [send(conversation.sending, message) for message in messages]
    conversation.turn()
    events, received = conversation.received(len(messages))

    assert numbers == told
    assert [(e.stream, e.number) for e in events] == [(stream, i) for i in range(len(messages))]
    assert received == messages


def test_an_update_does_not_wait_and_holds_its_senders_credit_until_it_is_released() -> None:
    talk = Talk()
    update = EncodedUpdate(9, 0, b"body")

    [message] = talk.receive(update.pack(), stream=0, number=9, kind=Kind.UPDATE)
    held = talk.puppet.connection.bytes_held

    assert isinstance(message, UpdateReceived)
    assert (message.rank, message.update) == (0, update)
    assert message.message.payload == update.pack()
    assert held == message.charge == charge_of(len(update.pack()))
    talk.puppet.connection.release(message.charge)
    assert talk.puppet.connection.bytes_held == 0


@pytest.mark.parametrize(
    ("message", "stream", "kind"),
    [
        (Finish(5), CONTROL_STREAM, Kind.FINISH),
        (BLOCK, SNAPSHOT_STREAM, Kind.SNAPSHOT),
        (Entries(7, b"body", None), LOG_STREAM, Kind.ENTRIES),
        (LOGGED, LOGGED_STREAM, Kind.LOGGED),
        (HISTOGRAMS, LOGGED_STREAM, Kind.HISTOGRAMS),
    ],
)
def test_what_was_read_is_released(message: Record, stream: int, kind: Kind) -> None:
    talk = Talk()

    talk.receive(message.pack(), stream=stream, number=0, kind=kind)

    assert talk.puppet.connection.bytes_held == 0


def test_control_messages_wait_for_their_turn_and_hold_their_senders_credit() -> None:
    talk = Talk()

    came, held = [], []
    for number in (2, 3, 1, 0):
        payload = Finish(number).pack()
        came.append(talk.receive(payload, stream=CONTROL_STREAM, number=number, kind=Kind.FINISH))
        held.append(talk.puppet.connection.bytes_held)

    charge = charge_of(len(Finish(0).pack()))
    assert came == [[], [], [], [Finish(n) for n in range(4)]]
    assert held == [charge, 2 * charge, 3 * charge, 0]


@pytest.mark.parametrize(
    ("payload", "stream", "kind", "named"),
    [
        (b"x", CONTROL_STREAM, 0, ("kind", 0)),
        (b"x", CONTROL_STREAM, max(Kind) + 1, ("kind", max(Kind) + 1)),
        (b"x", RANK_END, Kind.UPDATE, ("UPDATE", RANK_END)),
        (b"x", CONTROL_STREAM, Kind.UPDATE, ("UPDATE", CONTROL_STREAM)),
        (b"x", 0, Kind.SNAPSHOT, ("SNAPSHOT", 0)),
        (b"x", 0, Kind.ENTRIES, ("ENTRIES", 0)),
        (b"x", CONTROL_STREAM, Kind.LOGGED, ("LOGGED", CONTROL_STREAM)),
        (b"x", LOGGED_STREAM, Kind.LOGGED, ("Logged",)),
        (b"x", CONTROL_STREAM, Kind.HISTOGRAMS, ("HISTOGRAMS", CONTROL_STREAM)),
        (b"x", LOGGED_STREAM, Kind.HISTOGRAMS, ("Histograms",)),
        (b"x", LOG_STREAM, Kind.UPDATE, ("UPDATE", LOG_STREAM)),
        (b"x", LOG_STREAM, Kind.ENTRIES, ("Entries",)),
        (b"x", 0, Kind.FINISH, ("FINISH", 0)),
        (b"x", SNAPSHOT_STREAM, Kind.JOIN, ("JOIN", SNAPSHOT_STREAM)),
        (b"x", 0, Kind.UPDATE, ("EncodedUpdate",)),
        (b"x", SNAPSHOT_STREAM, Kind.SNAPSHOT, ("Snapshot",)),
        (b"x", CONTROL_STREAM, Kind.WELCOME, ("Welcome",)),
        (Finish(5).pack(), CONTROL_STREAM, Kind.LEAVE, ("Leave",)),
        (EncodedUpdate(6, 0, b"body").pack(), 0, Kind.UPDATE, ("update", 6, 5)),
    ],
)
def test_a_message_that_is_not_what_it_should_be_is_refused(
    payload: bytes, stream: int, kind: int, named: tuple[object, ...]
) -> None:
    talk = Talk()

    with pytest.raises(InvalidMessageError, match=naming(*named)):
        talk.receive(payload, stream=stream, number=5, kind=kind)
