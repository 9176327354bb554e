"""Messages over a connection, and the credit they need."""

from dataclasses import replace

import pytest

from gradwire_protocol import (
    CloseCode,
    Disconnected,
    Priority,
    ShapedMessage,
    UsageError,
)
from gradwire_protocol.limits import (
    MESSAGE_BYTES_MAX,
    WINDOW_BYTES_MIN,
    charge_of,
)
from gradwire_protocol.wire.frames import Close, Data
from support.endpoints import PLAIN
from support.pair import FRAGMENT_BYTES, Pair, data_frame, heard
from support.puppet import Puppet
from support.wording import naming

NARROW = replace(PLAIN, window_bytes=WINDOW_BYTES_MIN)

# Messages.


def test_what_is_passed_over_is_not_heard_any_more() -> None:
    puppet = Puppet()
    puppet.send(data_frame(b"first", stream=3, number=5))
    puppet.events()

    puppet.connection.skip_to(3, 8)
    heard = []
    for number in (7, 8):
        puppet.send(data_frame(b"later", stream=3, number=number))
        heard.append(len(puppet.events()))

    assert heard == [0, 1]


@pytest.mark.parametrize("size", [0, MESSAGE_BYTES_MAX + 1])
def test_a_message_of_a_forbidden_size_is_refused_at_once(size: int) -> None:
    pair = Pair().connect()

    with pytest.raises(UsageError, match=naming("message", size, 1, 2**22)):
        pair.initiator.send(bytes(size))

    assert pair.initiator.connection.bytes_queued == 0


@pytest.mark.parametrize(
    ("stream", "number", "kind"),
    [(-1, 0, 1), (2**16, 0, 1), (0, -1, 1), (0, 2**32, 1), (0, 0, -1), (0, 0, 2**16)],
)
def test_a_message_whose_name_does_not_fit_its_fields_is_refused_at_once(
    stream: int, number: int, kind: int
) -> None:
    connection = Puppet().connection

    with pytest.raises(UsageError, match=f"message {number} of kind {kind} in stream {stream};"):
        connection.send(stream, number, kind, b"x", Priority.UPDATE)

    assert connection.bytes_queued == 0


def test_a_message_that_is_relayed_goes_out_as_it_came_in() -> None:
    puppets = [Puppet(seed=seed) for seed in range(3)]
    payload = bytes(range(250)) * 40
    puppets[0].deliver(*puppets[0].fragments(payload, stream=5, number=9))
    received = puppets[0].events()[-1]

    for puppet in puppets[1:]:
        puppet.connection.relay(received.message, Priority.UPDATE)  # type: ignore[union-attr]
    fragments = [
        [f for packet in puppet.receive() for f in packet if isinstance(f, Data)]
        for puppet in puppets[1:]
    ]

    assert heard(received) == (5, 9, 1, payload)
    assert fragments[0] == fragments[1]
    assert b"".join(bytes(f.payload) for f in fragments[0]) == payload
    assert {(f.stream, f.number, f.kind) for f in fragments[0]} == {(5, 9, 1)}


def test_a_message_relayed_to_a_connection_that_is_not_open_has_no_effect() -> None:
    puppet = Puppet()
    puppet.connection.close(64, "enough", puppet.now)

    puppet.connection.relay(ShapedMessage.of(0, 0, 1, b"too late", 1200), Priority.UPDATE)

    assert puppet.connection.bytes_queued == 0


@pytest.mark.parametrize("size", [100, 10_000])
def test_bytes_of_messages_that_have_left_are_counted(size: int) -> None:
    puppet = Puppet().opened()
    before = puppet.connection.message_bytes_sent

    puppet.connection.send(0, 0, 1, bytes(size), Priority.UPDATE)
    puppet.receive()

    assert size <= puppet.connection.message_bytes_sent - before <= 1.2 * size


# Flow control.


def test_declaring_more_than_the_credit_ends_the_connection() -> None:
    puppet = Puppet(NARROW).opened()
    charge = charge_of(2 * 2**20)
    reason = naming(2 * charge, "credit", WINDOW_BYTES_MIN)

    for number in range(2):
        puppet.send(data_frame(bytes(FRAGMENT_BYTES), number=number, total=2 * 2**20))

    assert puppet.events() == [Disconnected(CloseCode.FLOW_CONTROL, reason, by_peer=False)]
    assert puppet.receive()[-1] == [Close(CloseCode.FLOW_CONTROL, reason)]
    assert puppet.connection.bytes_held == charge
