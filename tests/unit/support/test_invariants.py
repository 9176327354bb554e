"""The invariants: true of connections as they are, and false as soon as something is wrong."""

from collections.abc import Callable

import pytest

from gradwire_protocol import (
    Connection,
    MessageDelivered,
    MessageReceived,
    Priority,
    ShapedMessage,
)
from gradwire_protocol.connection.sender import Sender
from gradwire_protocol.delivery.outgoing import SENT
from support.network import Link
from support.pair import RESPONDER, Pair, Side


def sender_of(pair: Pair) -> Sender:
    """Return what the initiator sends with."""
    return pair.initiator.connection.sender


def turn(*sides: Side) -> None:
    """Let sides do what they have to."""
    for side in sides:
        side.endpoint._mark_active(side.connection)
        side.endpoint.handle_timer(side.network.now)
        side.network.turn(side.host)


def test_over_a_bad_network_they_hold_and_in_the_end_everything_has_arrived() -> None:
    pair = Pair(Link(loss=0.1, duplication=0.1, corruption=0.05, jitter=0.01)).connect()

    for size in (1, 100, 100_000):
        pair.initiator.send(bytes(size))
        pair.responder.send(bytes(size))
    pair.network.run_for(60.0)

    pair.invariants.check_all_arrived()
    assert pair.invariants.turns > 100
    assert len(pair.initiator.messages) == len(pair.responder.messages) == 3


def test_of_a_connection_that_has_ended_nothing_has_to_arrive_any_more() -> None:
    pair = Pair().connect()
    pair.lets_pass = lambda _: False
    pair.initiator.send(b"never")

    pair.network.run_for(100.0)

    pair.invariants.check_all_arrived()


def test_a_message_that_does_not_arrive_is_missed() -> None:
    pair = Pair().connect()
    pair.lets_pass = lambda _: False
    pair.initiator.send(b"late")

    with pytest.raises(AssertionError, match=r"I2: \[\(0, 0\)\] of 1 messages are missing"):
        pair.invariants.check_all_arrived()


def test_a_message_of_which_nobody_is_told_that_it_arrived_is_noticed() -> None:
    pair = Pair().connect()
    pair.lets_pass = lambda passing: passing.source != RESPONDER
    pair.initiator.send(b"here")
    pair.network.run_for(0.1)

    with pytest.raises(AssertionError, match=r"I2: nobody was told that \[\(0, 0\)\] arrived"):
        pair.invariants.check_all_arrived()


# What goes wrong. The initiator has sent 20 kB of stream 0, and nothing gets through.


def deliver_another_payload(pair: Pair) -> None:
    message = ShapedMessage.of(0, 0, 1, b"other", 1200)
    pair.responder.releases = False
    pair.responder.connection._report(MessageReceived(message, 0))


def deliver_twice(pair: Pair) -> None:
    message = ShapedMessage.of(0, 0, 1, bytes(20_000), 1200)
    pair.responder.releases = False
    for _ in range(2):
        pair.responder.connection._report(MessageReceived(message, 0))


def tell_of_what_has_not_arrived(pair: Pair) -> None:
    pair.initiator.connection._report(MessageDelivered(0, 0))


def tell_twice(pair: Pair) -> None:
    deliver_twice(pair)
    pair.responder.connection._events.pop()
    turn(pair.responder)
    for _ in range(2):
        tell_of_what_has_not_arrived(pair)


def miscount_the_bytes_in_flight(pair: Pair) -> None:
    sender_of(pair).recovery.sent.bytes_in_flight += 1


def miscount_the_bytes_queued(pair: Pair) -> None:
    sender_of(pair).queue.bytes_queued -= 1


def forget_a_fragment(pair: Pair) -> None:
    sender = sender_of(pair)
    pair.initiator.send(b"more", number=1)
    sender.queue._messages[1]._fates[0] = SENT
    sender.recovery.sent.contents.clear()


def use_a_number_twice(pair: Pair) -> None:
    pair.initiator.endpoint._replies.append((pair.wire[-1].datagram, RESPONDER))


def declare_too_much(pair: Pair) -> None:
    reassembly = pair.initiator.connection._reassembly
    reassembly.declared = reassembly.window_bytes + 1


def ignore_the_window(pair: Pair) -> None:
    sender_of(pair)._room_for = lambda *_: 10**6  # type: ignore[method-assign]
    pair.initiator.connection.send(1, 0, 1, bytes(100_000), Priority.UPDATE)


def talk_to_a_third_party(pair: Pair) -> None:
    pair.initiator.connection._path._responses.append((b"whoisit?", "elsewhere"))


def talk_to_a_stranger(pair: Pair) -> None:
    pair.initiator.endpoint._replies.append((bytes(100), "elsewhere"))


def never_wake(pair: Pair) -> None:
    pair.initiator.connection.next_timer = lambda: None  # type: ignore[method-assign]


def wake_late(pair: Pair) -> None:
    pair.initiator.endpoint._arm = lambda connection: None  # type: ignore[method-assign]
    pair.initiator.endpoint._timers._armed[pair.initiator.connection] = pair.network.now + 5.0


def wake_never(pair: Pair) -> None:
    def disarm(connection: Connection) -> None:
        pair.initiator.endpoint._timers._armed.pop(connection, None)

    pair.initiator.endpoint._arm = disarm  # type: ignore[method-assign]


def owe_an_acknowledgement(pair: Pair) -> None:
    pair.initiator.connection._traffic.received._eliciting = 1


def acknowledge_anything(pair: Pair) -> None:
    received = pair.initiator.connection._traffic.received
    received.record_packets(
        received.largest + 2, received.largest + 3, eliciting=True, now=pair.network.now
    )


@pytest.mark.parametrize(
    ("sabotage", "says"),
    [
        (deliver_another_payload, r"I1: \(0, 0\) has changed"),
        (deliver_twice, r"I1: message \(0, 0\) came twice"),
        (tell_of_what_has_not_arrived, r"I1: \(0, 0\) has not arrived"),
        (tell_twice, r"I1: message \(0, 0\) arrived twice"),
        (miscount_the_bytes_in_flight, "I4: 15 packets"),
        (miscount_the_bytes_queued, "I4: bytes queued"),
        (forget_a_fragment, r"I4: nothing will tell of fragments \[0\] of message 1"),
        (use_a_number_twice, r"I5: packet \d+ after \d+"),
        (declare_too_much, "I6: 0 bytes are put together, 16777217 held"),
        (ignore_the_window, r"I7: \d+ bytes are in flight; the window is \d+"),
        (talk_to_a_third_party, "I7: elsewhere has not proved itself"),
        (talk_to_a_stranger, "I7: elsewhere has not said enough to be answered"),
        (never_wake, "I8: nothing would ever wake it"),
        (wake_late, r"I8: it would be woken .* seconds late"),
        (wake_never, "I8: the endpoint would never wake it"),
        (owe_an_acknowledgement, "I8: nothing would ever be acknowledged"),
        (acknowledge_anything, "I9: not all packets from 2 to 2 have arrived"),
    ],
)
def test_what_goes_wrong_is_noticed(sabotage: Callable[[Pair], None], says: str) -> None:
    pair = Pair().connect()
    pair.lets_pass = lambda _: False
    pair.initiator.send(bytes(20_000), number=0)
    pair.network.run_for(0.01)

    with pytest.raises(AssertionError, match=says):  # noqa: PT012
        sabotage(pair)
        turn(pair.initiator, pair.responder)
