"""What tests look at inside the objects of the protocol that no caller of them needs.

`invariants`, `state_of` and `Unsealing` compare it, and some tests look at it to show that
something is forgotten. Where a private attribute gets another name, only this file changes.
"""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from gradwire_protocol import Connection, Endpoint
from gradwire_protocol.connection.sender import Sender
from gradwire_protocol.crypto.epochs import OpeningKeys, SealingKeys
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.delivery.incoming import IncomingMessage, Reassembly
from gradwire_protocol.delivery.outgoing import OutgoingMessage, SendQueue
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.recovery.sent_packets import SentPackets
from gradwire_protocol.security.protection import Opening, Sealing
from gradwire_protocol.security.responder import Responder
from gradwire_protocol.security.sealed import CipherOpening, CipherSealing

# An endpoint.


def connection_of(endpoint: Endpoint, session_id: int) -> Connection | None:
    """Return the connection that has a session id, closing ones included."""
    return endpoint._connections.get(session_id)


def reporting(endpoint: Endpoint) -> Iterable[Connection]:
    """Return the connections that have events to report."""
    return endpoint._reporting


def waits_for_a_turn(endpoint: Endpoint, connection: Connection) -> bool:
    """Return whether a connection is in line to send."""
    return connection in endpoint._turns


def turn_deadline(endpoint: Endpoint) -> float | None:
    """Return when the connections in line may send next."""
    return endpoint._paced_until


def armed_deadline(endpoint: Endpoint, connection: Connection) -> float | None:
    """Return when an endpoint wakes a connection."""
    return endpoint._timers.deadline_of(connection)


def answers_of(responder: Responder) -> int:
    """Return how many answers to INITs can be found by their address."""
    return len(responder._answered)


def replays_of(responder: Responder) -> dict[bytes, int]:
    """Return the time of the last INIT of each key that is remembered."""
    return dict(responder._replays._last)


def spend_inits(endpoint: Endpoint, now: float) -> None:
    """Let an endpoint have answered as many INITs as it does without a cookie."""
    while endpoint._responder._inits.try_spend(now):
        pass


# A connection.


def reassembly_of(connection: Connection) -> Reassembly:
    """Return what puts the messages of a connection together."""
    return connection._reassembly


def received_by(connection: Connection) -> ReceivedPackets:
    """Return which packets came to a connection."""
    return connection._traffic.received


def owes_an_acknowledgement(received: ReceivedPackets) -> bool:
    """Return whether packets came that ask for an acknowledgement."""
    return bool(received._eliciting)


def paced_until(sender: Sender) -> float | None:
    """Return when the pace lets a sender go on."""
    return sender._paced_until


def go_on_from(connection: Connection, number: int) -> None:
    """Let the next packet of a quiet connection have this number, as if it had sent all before."""
    sent = connection.sender.recovery.sent
    assert not sent.packets_in_flight, "something is under way"
    assert not sent.lost_packets, "something may still arrive"
    assert number >= sent.next_number, f"packet {number} was sent"
    sent.next_number = sent.oldest = sent._base = number


# Messages and packets.


def charges_of(reassembly: Reassembly) -> int:
    """Return what the messages that are not complete are charged with, in bytes."""
    return sum(message.charge for message in unfinished_in(reassembly))


def messages_of(queue: SendQueue) -> Collection[OutgoingMessage]:
    """Return the messages that are queued."""
    return queue._messages.values()


def forget_begun(queue: SendQueue) -> None:
    """Let a sender send no more of the messages that have begun, as another program may."""
    for message in [message for message in messages_of(queue) if message.begun]:
        del queue._messages[message.key]
        queue._open -= 1
        queue.bytes_queued -= message.shaped.total


def unfinished_in(reassembly: Reassembly) -> list[IncomingMessage]:
    """Return the messages that have begun and are not complete."""
    return list(reassembly._open.values())


def fates_of(message: OutgoingMessage) -> Any:
    """Return what became of every fragment: ndarray of shape (fragments,)."""
    return np.frombuffer(message._fates, np.uint8)


def came_of(message: IncomingMessage) -> bytes:
    """Return which fragments came, a byte each."""
    return bytes(message._received)


def trains_of(sent: SentPackets) -> object:
    """Return what the trains that packets left in have in common."""
    return sent._trains


# Keys.


def sealing_of(connection: Connection) -> Sealing:
    """Return what a connection that is open seals its packets with."""
    assert connection._agreement is not None
    return connection._agreement.sealing


def opening_keys(opening: Opening) -> OpeningKeys:
    """Return the keys that packets are opened with."""
    assert isinstance(opening, CipherOpening)
    return opening._keys


def keys_of(connection: Connection) -> OpeningKeys:
    """Return the keys that a connection opens packets with."""
    return opening_keys(connection._traffic.receiver.opening)


def sealing_keys(sealing: Sealing) -> SealingKeys:
    """Return the keys that packets are sealed with."""
    assert isinstance(sealing, CipherSealing)
    return sealing._keys


def first_key(keys: SealingKeys) -> tuple[Suite, bytes]:
    """Return suite and key of the first epoch, while it lasts."""
    assert keys.epoch == 0, "the key of the first epoch is gone"
    return keys._suite, keys._key
