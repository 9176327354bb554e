"""The TCP driver: the same packets over a stream, and what becomes of them when it ends."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from gradwire_protocol import CloseCode, Connection, Disconnected, Event, MessageReceived
from gradwire_protocol.limits import MIB
from gradwire_udp import TcpAddress, TcpCounters, open_listener
from gradwire_udp.tcp.framing import ReadBuffer
from gradwire_udp.tcp.peer import TcpPeer
from support.driven_side import CODE, messages, on_loops
from support.tcp_side import TcpSide, connected_over_tcp, connected_tcp_sides
from support.waiting import until

RESET_AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends RST."""


def closed_port() -> int:
    with open_listener(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def answering_nothing() -> Iterator[socket.socket]:
    """Yield a TCP socket that listens, for a test to do with as it likes."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


# What travels.


@on_loops
async def test_much_more_than_the_kernel_takes_at_once_arrives_and_nothing_is_sent_twice() -> None:
    payloads = [Random(i).randbytes(MIB) for i in range(40)]

    one, other = await connected_tcp_sides()

    one.send([(0, number, payload) for number, payload in enumerate(payloads)])
    other.send([(1, number, payload) for number, payload in enumerate(payloads)])
    await until(lambda: len(one.delivered) == len(other.delivered) == 40, "all deliveries")

    assert [payload for *_, payload in sorted(other.received)] == payloads
    for side in (one, other):
        assert side.counters.queued_bytes == 0
        assert side.endpoint.counters.fragments_retransmitted == 0
        assert side.endpoint.counters.packets_lost == 0
        assert side.endpoint.counters.probe_timeouts == 0


@on_loops
async def test_what_one_side_counts_as_sent_the_other_counts_as_received() -> None:
    def sent(side: TcpSide) -> tuple[int, int]:
        return side.counters.packets_sent, side.counters.bytes_sent

    def received(side: TcpSide) -> tuple[int, int]:
        return side.counters.packets_received, side.counters.bytes_received

    one, other = await connected_tcp_sides()
    one.send(messages(3, 20, [500, 20_000]))
    await until(lambda: len(one.delivered) == 20, "all deliveries")

    await until(lambda: sent(one) == received(other), "everything that was sent")
    await until(lambda: sent(other) == received(one), "everything that was sent back")

    assert one.counters.bytes_sent > sum(len(payload) for *_, payload in other.received)
    assert (other.counters.accepted, other.counters.open, one.counters.open) == (1, 1, 1)


def test_no_two_connections_have_the_same_address() -> None:
    assert TcpAddress("::1", 7) != TcpAddress("::1", 7)
    assert str(TcpAddress("::1", 7)) == "tcp:[::1]:7"


# Ends.


@on_loops
async def test_a_connection_that_is_cut_is_over_at_once() -> None:
    one, other = await connected_tcp_sides()

    other.driver.close()
    await until(lambda: one.ended, "the end")

    reason = "its TCP connection was closed by the other side"
    assert one.ended == Disconnected(CloseCode.LOST, reason, by_peer=False)
    assert len(one.endpoint) == 0
    assert (one.counters.broken, one.counters.open) == (1, 0)


@on_loops
async def test_what_was_said_before_the_cut_counts() -> None:
    """Also when there is more to be sent, which fails before the rest is read."""
    payload = Random(5).randbytes(3 * MIB)

    class Leaver(TcpSide):
        def handle_event(self, connection: Connection, event: Event, now: float) -> None:
            super().handle_event(connection, event, now)
            if isinstance(event, MessageReceived):
                self.send([(1, event.number, b"last words")])
                self.hang_up("enough")
                self.driver.close()

    one, other = TcpSide(), Leaver(accepts=1)
    await connected_over_tcp(one, other)

    one.send([(0, 0, b"go"), *((0, number, payload) for number in range(1, 5))])
    await until(lambda: one.ended, "the end")

    assert one.ended == Disconnected(CODE, "enough", by_peer=True)
    assert one.received == [(1, 0, b"last words")]


@on_loops
async def test_a_connection_that_is_reset_is_over_at_once() -> None:
    with answering_nothing() as server:
        server.setblocking(True)
        side = TcpSide()
        side.dial(server.getsockname())
        taken, _ = server.accept()
        await until(lambda: side.counters.bytes_sent, "the first packet")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_ONCE)
        taken.close()
        await until(lambda: side.ended, "the end")

    reason = "its TCP connection broke: Connection reset by peer"
    assert side.ended == Disconnected(CloseCode.UNREACHABLE, reason, by_peer=False)


@on_loops
async def test_a_port_where_nobody_listens_is_refused_at_once() -> None:
    side = TcpSide()

    side.dial(("127.0.0.1", closed_port()))
    await until(lambda: side.ended, "the end")

    assert side.ended == Disconnected(CloseCode.UNREACHABLE, "Connection refused", by_peer=False)
    assert side.counters.open == 0


def test_a_connection_to_itself_is_nobody_s() -> None:
    """Whoever dials a free port of its own machine may be given that port for itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        peer = TcpPeer(sock, TcpAddress("127.0.0.1", 1), ReadBuffer(10), TcpCounters(),
                       connected=False, unused_since=0.0)  # fmt: skip

        with pytest.raises(ConnectionRefusedError):
            peer.on_connected()
