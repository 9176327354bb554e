"""Endpoints for tests, and the datagrams that a peer without one writes by hand."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from gradwire_protocol import Address, Connection, ConnectionConfig, Drop, Endpoint, Event
from gradwire_protocol.connection.train import ECN_NOT
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.limits import DATAGRAM_BYTES
from gradwire_protocol.security.checksum import Checksum, ChecksumHandshake
from gradwire_protocol.wire.frames import pack_ping
from gradwire_protocol.wire.packets import (
    NO_KEY_ID,
    TRANSPORT,
    TRANSPORT_HEADER,
    VERSIONS,
    Accept,
    Greeting,
    Init,
    Reply,
    TransportLimits,
)

NOW = 1000.0
LIMITS = TransportLimits(2**24, DATAGRAM_BYTES, 30.0)
PLAIN: Final = ConnectionConfig(datagram_bytes_max=DATAGRAM_BYTES)
"""Datagrams stay as large as they are to begin with: nothing is sent to find out more."""

SPARE_BYTES: Final = 4
"""What an endpoint may write to behind the data it is given."""


def listening(connections_max: int = 4, config: ConnectionConfig = PLAIN) -> Endpoint:
    """Return an endpoint that accepts connections."""
    return Endpoint(config, random_bytes=Random(1).randbytes, connections_max=connections_max)


def dialling(config: ConnectionConfig = PLAIN) -> Endpoint:
    """Return an endpoint that accepts none."""
    return Endpoint(config, random_bytes=Random(2).randbytes)


def init_of(session_id: int, nonce: bytes = bytes(32), limits: TransportLimits = LIMITS) -> bytes:
    """Return an INIT of suite 0."""
    init = Init(Suite.CHECKSUM, session_id, NO_KEY_ID, nonce, b"")
    _, greeting = ChecksumHandshake(init.prologue).write_init(nonce, Greeting(limits).pack())
    return replace(init, sealed=greeting).pack()


def agreed(init: bytes, accept: bytes) -> tuple[Reply, Checksum, Checksum]:
    """Return what two datagrams of suite 0 have agreed on.

    The responder's reply, what the initiator seals with, and what the responder seals with.
    """
    asked, answer = Init.parse(init), Accept.parse(accept)
    handshake = ChecksumHandshake(asked.prologue)
    handshake.read_init(asked.public_key, asked.sealed)
    reply = Reply.parse(handshake.read_accept(answer.public_key, answer.sealed))
    there, back = handshake.keys
    return reply, Checksum(there), Checksum(back)


def other_version(datagram: bytes) -> bytes:
    """Return an INIT as a later version of the protocol would send it."""
    return datagram[:1] + b"\x02" + datagram[2:]


def versions_for(connection: Connection, *versions: int) -> bytes:
    """Return the VERSIONS that answers the INIT of a connection."""
    session_id = connection.session_id.to_bytes(4, "little")
    return bytes([VERSIONS, len(versions), 0, 0]) + session_id + bytes(versions)


def first_packet(
    init: bytes, accept: bytes, frames: bytes = pack_ping(), *, number: int = 0
) -> bytes:
    """Return the packet that opens a connection."""
    reply, sealing, _ = agreed(init, accept)
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, reply.session_id, number)
    return bytes(sealing.seal(bytearray(header + frames)))


def hand_over(
    endpoint: Endpoint,
    datagrams: Sequence[bytes],
    address: Address = "peer",
    now: float = NOW,
    *,
    ecn: int = ECN_NOT,
) -> None:
    """Let an endpoint receive datagrams in one read: all of one size, the last perhaps shorter.

    Like a driver's, the buffer is used again: what an endpoint has kept of it would be garbage.
    """
    joined = b"".join(datagrams)
    buffer = bytearray(joined) + bytes(SPARE_BYTES)
    view = memoryview(buffer)[: len(joined)]
    endpoint.receive(view, len(datagrams[0]) or 1, address, ecn, now)
    buffer[:] = b"\xa5" * len(buffer)


def sent_by(endpoint: Endpoint, now: float = NOW) -> list[tuple[bytes, Address]]:
    """Let an endpoint send all that may leave now; return the datagrams and where they go."""
    sent = []
    while (train := endpoint.next_train(now)) is not None:
        sent += [(datagram, train.address) for datagram in train.datagrams()]
    return sent


def ask(
    endpoint: Endpoint, datagram: bytes, address: str = "peer", now: float = NOW
) -> list[bytes]:
    """Let an endpoint receive a datagram; return what it answers there."""
    hand_over(endpoint, [datagram], address, now)
    return [reply for reply, target in sent_by(endpoint, now) if target == address]


def events_of(endpoint: Endpoint) -> list[tuple[Connection, Event]]:
    """Return what an endpoint has to report."""
    events = []
    while (item := endpoint.next_event()) is not None:
        events.append(item)
    return events


def drops(endpoint: Endpoint) -> dict[Drop, int]:
    """Return what was dropped, by reason."""
    return {reason: n for reason, n in endpoint.counters.drops.items() if n}
