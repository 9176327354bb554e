"""Endpoints for tests, and the datagrams that a peer without one writes by hand."""

from random import Random

from gradwire_protocol import Connection, ConnectionConfig, Drop, Endpoint, Event
from gradwire_protocol.frames import pack_ping
from gradwire_protocol.packets import TRANSPORT, TRANSPORT_HEADER, Accept, Init, TransportLimits
from gradwire_protocol.protection import checksums

NOW = 1000.0
LIMITS = TransportLimits(2**24, 1400, 30.0)


def listening(connections_max: int = 4) -> Endpoint:
    """Return an endpoint that accepts connections."""
    return Endpoint(
        ConnectionConfig(), random_bytes=Random(1).randbytes, connections_max=connections_max
    )


def dialling() -> Endpoint:
    """Return an endpoint that accepts none."""
    return Endpoint(ConnectionConfig(), random_bytes=Random(2).randbytes)


def init_of(session_id: int, nonce: bytes = bytes(32)) -> bytes:
    """Return an INIT."""
    return Init(session_id, nonce, LIMITS).pack()


def other_version(datagram: bytes) -> bytes:
    """Return an INIT as a later version of the protocol would send it."""
    return datagram[:1] + b"\x02" + datagram[2:]


def first_packet(init: bytes, accept: bytes, frames: bytes = pack_ping()) -> bytes:
    """Return the packet that opens a connection."""
    parsed, answer = Init.parse(init), Accept.parse(accept, init)
    sealing, _ = checksums(parsed.nonce, answer.nonce)
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, answer.session_id, 0)
    return sealing.seal(bytearray(header + frames))


def ask(
    endpoint: Endpoint, datagram: bytes, address: str = "peer", now: float = NOW
) -> list[bytes]:
    """Let an endpoint receive a datagram; return what it answers there."""
    endpoint.receive_datagram(datagram, address, now)
    return [reply for reply, target in endpoint.datagrams_to_send(now) if target == address]


def events_of(endpoint: Endpoint) -> list[tuple[Connection, Event]]:
    """Return what an endpoint has to report."""
    events = []
    while (item := endpoint.next_event()) is not None:
        events.append(item)
    return events


def drops(endpoint: Endpoint) -> dict[Drop, int]:
    """Return what was dropped, by reason."""
    return {reason: n for reason, n in endpoint.counters.drops.items() if n}
