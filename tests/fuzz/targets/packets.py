"""Datagrams of any kind, at an endpoint with one sealed connection.

Each step is a train of datagrams in one read: how they are made, how long each is, and what is in
them. A datagram that was not sealed with the key changes nothing of the connection; one that was,
and was then changed in a single bit, does not either. Each is counted, as accepted or as dropped,
and a stranger gets no more bytes than he sent.
"""

from collections.abc import Iterable
from typing import Final

from fuzz.keyed import NOW, dialling, responding
from fuzz.reading import Reader, steps
from gradwire_protocol import Connection, Endpoint, State
from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, PACKET_HEADER_BYTES
from gradwire_protocol.wire.frames import pack_ack, pack_challenge, pack_close, pack_ping
from gradwire_protocol.wire.packets import (
    ACCEPT,
    INIT,
    INIT_BYTES,
    RESET,
    RETRY,
    SINGLE,
    TRANSPORT,
    TRANSPORT_HEADER,
    VERSION,
)
from support.acks import ack
from support.endpoints import events_of, hand_over, sent_by
from support.insides import sealing_of
from support.pair import data_frame

BYTES_MAX: Final = 4_096
STEPS_MAX: Final = 8

WORKER, STRANGER, MOVED = "worker", "stranger", "moved"

# How, by bits: two of what the bytes are,
RAW, ADDRESSED, SEALED, CHANGED = range(4)
"""a datagram; one behind the header of a packet for the connection; frames in an authentic packet;
frames in a packet of which then a bit was changed;"""
COPIES_SHIFT: Final = 2
COPIES_MAX: Final = 8
"""three of how often it comes in one read, with consecutive numbers where it is sealed,"""
FROM_ELSEWHERE: Final = 0x20
FLAGGED: Final = 0x40
CUT: Final = 0x80
"""and one that says that the first two bytes are where to cut a raw datagram into several."""


class Worker:
    """One end of a sealed connection; the master at the other end is fuzzed."""

    def __init__(self) -> None:
        self.master, self._endpoint = responding(keyed=True), dialling(keyed=True)
        self._own = self._endpoint.connect("master", NOW)
        for _ in range(2):  # INIT and ACCEPT; the first packet, and what it is answered with
            _pass(self._endpoint, self.master, WORKER)
            _pass(self.master, self._endpoint, "master")
        [self.connection] = self.master.connections()
        events_of(self.master)
        self.next_number = 1_000

    def seal(self, frames: bytes, flags: int) -> bytes:
        """Return an authentic packet."""
        header = TRANSPORT_HEADER.pack(
            TRANSPORT, flags, 0, self.connection.session_id, self.next_number
        )
        self.next_number += 1
        return bytes(sealing_of(self._own).seal(bytearray(header + frames)))


def check(data: bytes) -> None:
    """Let an endpoint receive trains."""
    reader = Reader(data)
    worker = Worker()
    for _ in range(STEPS_MAX):
        if not reader:
            break
        how = reader.integer(1)
        datagrams = train(worker, how, reader.piece())
        if datagrams and datagrams[0]:
            deliver(worker, how, datagrams)
    if worker.connection.state is State.OPEN:
        accepted = worker.master.counters.packets_accepted
        hand_over(worker.master, [worker.seal(pack_ping(), 0)], WORKER, NOW)
        assert worker.master.counters.packets_accepted == accepted + 1, "deaf to its peer"


def train(worker: Worker, how: int, data: bytes) -> list[bytes]:
    """Return the datagrams of a step, all of one size but the last."""
    copies = 1 + (how >> COPIES_SHIFT) % COPIES_MAX
    source = how % 4
    if source == RAW:
        if how & CUT:
            segment = 1 + int.from_bytes(data[:2], "little") % DATAGRAM_BYTES_MAX
            return [data[at : at + segment] for at in range(2, len(data), segment)]
        return [data.ljust(INIT_BYTES, b"\0") if data[:1] == bytes([INIT]) else data] * copies
    if source == ADDRESSED:
        header = TRANSPORT_HEADER.pack(TRANSPORT, SINGLE, 0, worker.connection.session_id, 0)
        return [header[:8] + data] * copies
    flags = SINGLE if how & FLAGGED else 0
    packets = [worker.seal(data, flags) for _ in range(copies)]
    if source == CHANGED:
        bit = sum(data) % (8 * (len(packets[0]) - PACKET_HEADER_BYTES))
        packets = [_changed(packet, 8 * PACKET_HEADER_BYTES + bit) for packet in packets]
    return packets


def deliver(worker: Worker, how: int, datagrams: list[bytes]) -> None:
    """Let a train come; compare what it has led to with what it may lead to."""
    master, connection = worker.master, worker.connection
    forged = how % 4 != SEALED
    home = STRANGER if forged else WORKER
    before = _counted(master)
    accepted, held, state = (
        master.counters.packets_accepted, connection.bytes_held, connection.state,
    )  # fmt: skip
    hand_over(master, datagrams, MOVED if how & FROM_ELSEWHERE and not forged else home, NOW)
    assert _counted(master) == before + len(datagrams), "a datagram is not accounted for"
    answers = [answer for answer, address in sent_by(master, NOW) if address == STRANGER]
    assert sum(map(len, answers)) <= sum(map(len, datagrams))
    if forged:
        assert master.counters.packets_accepted == accepted, "accepts what nobody has sealed"
        assert (connection.bytes_held, connection.state) == (held, state)
        assert not events_of(master)
    check_bounds(master, connection)


def check_bounds(master: Endpoint, connection: Connection) -> None:
    """Compare an endpoint with what it promises."""
    assert len(master) <= 1
    assert 0 <= connection.bytes_held <= master.config.window_bytes
    events_of(master)


def _counted(endpoint: Endpoint) -> int:
    """Return how many datagrams were accounted for."""
    counters = endpoint.counters
    answered = counters.handshakes_answered + counters.retries_sent
    return counters.packets_accepted + answered + sum(counters.drops.values())


def _changed(packet: bytes, bit: int) -> bytes:
    changed = bytearray(packet)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _pass(source: Endpoint, target: Endpoint, address: str) -> None:
    """Deliver what one endpoint sends now."""
    for datagram, _ in sent_by(source, NOW):
        hand_over(target, [datagram], address, NOW)


def seeds() -> Iterable[bytes]:
    """Return trains of every kind of datagram, sealed, changed, cut and invented."""
    fragment = data_frame(bytes(1_148), total=8 * 1_148, fragment_bytes=1_148)
    many = (COPIES_MAX - 1) << COPIES_SHIFT
    acked = pack_ack(ack((0, 0), credit=2**30))
    yield steps((SEALED, pack_ping() + acked), (SEALED | many, pack_ping()))
    yield steps((SEALED | many | FLAGGED, fragment), (CHANGED | many | FLAGGED, fragment))
    yield steps((SEALED | FROM_ELSEWHERE, pack_challenge(b"12345678")), (SEALED, pack_ping()))
    yield steps((SEALED, pack_close(64, "left")), (SEALED, pack_ping()), (ADDRESSED, bytes(40)))
    yield steps((SEALED, b"\x07"), (CHANGED, pack_ping()))
    yield steps((ADDRESSED | many, bytes(8) + fragment), (ADDRESSED, bytes(3)))
    for kind in (TRANSPORT, INIT, ACCEPT, RETRY, RESET, 0x55):
        yield steps((RAW | many, bytes([kind, VERSION]) + bytes(range(60))))
    yield steps((RAW, bytes([INIT, VERSION + 1])), (RAW | CUT, bytes([19, 0]) + bytes(200)))
