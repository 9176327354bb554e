"""The end of what there is to send: parity where it pays, once, and only while it is of use."""

from collections.abc import Iterator

import pytest

from gradwire_protocol.delivery.outgoing import OutgoingMessage, Priority
from gradwire_protocol.delivery.parity import parity_of
from gradwire_protocol.recovery.parity_tail import ParityTail
from gradwire_protocol.wire.frames import Data, parity_groups
from support.fragments import message_of

FRAGMENTS = 40


@pytest.fixture
def tail() -> ParityTail:
    """Return the tail of a path that loses one packet in a hundred."""
    tail = ParityTail()
    tail.loss.record(lost=10, arrived=990)
    return tail


def sent(number: int = 0, fragments: int = FRAGMENTS) -> OutgoingMessage:
    """Return a message that was sent to its end."""
    shaped = message_of(fragments * 1160, fragment_bytes=1160, number=number)
    message = OutgoingMessage(number, shaped, Priority.UPDATE)
    message.on_sent(0, fragments)
    return message


def parities(tail: ParityTail) -> Iterator[Data]:
    """Take what there is to send, until there is nothing."""
    while (data := tail.next_parity()) is not None:
        yield data


def all_of(message: OutgoingMessage) -> list[Data]:
    shaped = message.shaped
    return [parity_of(shaped, group) for group in range(parity_groups(shaped.count))]


def test_at_first_there_is_nothing_to_send(tail: ParityTail) -> None:
    assert not tail.has_pending
    assert tail.next_parity() is None


def test_every_group_of_every_message_gets_its_parity(tail: ParityTail) -> None:
    messages = [sent(0), sent(1)]
    for message in messages:
        tail.schedule_parity(message)
    assert tail.has_pending

    assert list(parities(tail)) == all_of(messages[0]) + all_of(messages[1])
    assert not tail.has_pending


def test_a_message_gets_its_parity_once(tail: ParityTail) -> None:
    message = sent()
    tail.schedule_parity(message)
    tail.schedule_parity(message)

    assert list(parities(tail)) == all_of(message)
    tail.schedule_parity(message)

    assert not tail.has_pending
    assert message.parity_sent


def test_where_nothing_is_lost_there_is_no_parity() -> None:
    tail, message = ParityTail(), sent()
    tail.loss.record(lost=0, arrived=1000)

    tail.schedule_parity(message)

    assert not tail.has_pending
    assert not message.parity_sent


def test_a_message_that_has_arrived_needs_no_parity(tail: ParityTail) -> None:
    arrived, message = sent(0), sent(1)
    tail.schedule_parity(arrived)
    tail.schedule_parity(message)
    first = tail.next_parity()

    arrived.on_acked(list(range(FRAGMENTS)))

    assert first == all_of(arrived)[0]
    assert list(parities(tail)) == all_of(message)


def test_a_message_that_is_cut_anew_needs_other_parity(tail: ParityTail) -> None:
    message = sent()
    tail.schedule_parity(message)
    tail.next_parity()

    message.restart(1, message.shaped.reshape(1148, new_shape=True))

    assert list(parities(tail)) == []
