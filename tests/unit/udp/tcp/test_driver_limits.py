"""The TCP driver and those who do not keep the rules, or do not keep up."""

import errno
import os
import socket
from contextlib import ExitStack, suppress

import pytest

from gradwire_protocol import CloseCode, Connected, Connection, Disconnected, Event, Priority
from gradwire_protocol.congestion.controller import WINDOW_BYTES
from gradwire_protocol.limits import MIB
from gradwire_protocol.wire.packets import ACCEPT
from gradwire_udp import accepting, open_listener
from gradwire_udp.tcp import driver
from support.driven_side import on_loops
from support.endpoints import first_packet, init_of
from support.tcp_side import TcpSide, connected_over_tcp
from support.waiting import until
from support.wording import naming


def framed(packet: bytes) -> bytes:
    return len(packet).to_bytes(2, "little") + packet


def dialled(side: TcpSide, *, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(side.address)
    sock.setblocking(False)
    return sock


async def read(sock: socket.socket, size: int) -> bytes:
    """Return so many bytes, which have to come."""
    data = b""

    def come() -> bool:
        nonlocal data
        with suppress(BlockingIOError):
            data += sock.recv(size - len(data))
        return len(data) == size

    await until(come, f"{size} bytes")
    return data


async def ended(sock: socket.socket) -> None:
    """Wait until the other side has closed a TCP connection."""

    def end() -> bool:
        try:
            return not sock.recv(2**16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    await until(end, "the end of the TCP connection")


async def shaken_hands(sock: socket.socket, session_id: int = 5) -> None:
    """Do the handshake of an endpoint by hand."""
    init = init_of(session_id)
    sock.send(framed(init))
    size = int.from_bytes(await read(sock, 2), "little")
    accept = await read(sock, size)
    assert accept[0] == ACCEPT
    sock.send(framed(first_packet(init, accept)))


# Rules.


@on_loops
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 100], ids=["http", "zeros", "ones"]
)
async def test_what_is_no_packet_with_its_length_ends_the_tcp_connection(garbage: bytes) -> None:
    side = TcpSide(accepts=1)
    with dialled(side) as stranger:
        stranger.send(garbage)
        await ended(stranger)

    assert (side.counters.violations, side.counters.open) == (1, 0)


@on_loops
async def test_a_worker_that_breaks_the_framing_is_lost() -> None:
    side = TcpSide(accepts=1)
    with dialled(side) as rogue:
        await shaken_hands(rogue)
        await until(lambda: side.connection, "the connection")
        rogue.send(bytes(2))
        await ended(rogue)

    await until(lambda: side.ended, "the end")
    reason = "its TCP connection carried a packet of 0 bytes; it has to be 1 to 8900"
    assert side.ended == Disconnected(CloseCode.LOST, reason, by_peer=False)


@on_loops
async def test_who_says_nothing_of_use_is_turned_away_and_who_does_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "SWEEP_SECONDS", 0.01)

    side = TcpSide(accepts=1)
    with dialled(side) as worker, dialled(side) as silent, dialled(side) as half:
        await shaken_hands(worker)
        monkeypatch.setattr(driver, "UNUSED_SECONDS_MAX", 0.05)
        half.send(framed(init_of(6)))
        await ended(silent)
        await ended(half)

        assert side.counters.open == 1
        assert side.counters.turned_away == 2
        assert side.ended is None
        assert side.connection is not None
        side.hang_up()
        await ended(worker)
    assert side.counters.turned_away == 3


@on_loops
async def test_of_too_many_those_go_first_that_were_of_no_use_for_longest() -> None:
    most = 2 + driver.PEERS_SPARE

    side = TcpSide(accepts=2)
    with ExitStack() as stack:
        worker = stack.enter_context(dialled(side))
        await shaken_hands(worker)
        await until(lambda: side.connection, "the connection")
        others = [stack.enter_context(dialled(side)) for _ in range(most + 2)]
        await until(lambda: side.counters.accepted == most + 3, "all of them")

        for gone in others[:3]:
            await ended(gone)

        assert side.counters.open == most
        assert side.counters.turned_away == 3
        assert side.ended is None


@on_loops
async def test_where_all_are_of_use_nobody_else_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PEERS_SPARE", 0)

    side = TcpSide(accepts=1)
    with dialled(side) as worker:
        await shaken_hands(worker)
        await until(lambda: side.connection, "the connection")
        with dialled(side) as late:
            await ended(late)

    assert side.counters.turned_away == 1
    assert side.ended is None or side.ended.code == CloseCode.LOST


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptors left, for a while."""

    failures = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@on_loops
async def test_without_descriptors_nobody_is_let_in_until_there_are_some_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "ACCEPT_PAUSE_SECONDS", 0.01)

    with open_listener(("127.0.0.1", 0)) as real:
        listener = Exhausted(fileno=real.detach())
    one, other = TcpSide(), TcpSide(accepts=1, listener=listener)

    await connected_over_tcp(one, other)

    assert caplog.messages == [naming("TCP", "Too many open files")] * 3


# Pace.


class Master(TcpSide):
    """Sends everybody who comes as many messages as it is told."""

    def __init__(self, messages: int, size: int) -> None:
        self.connections: list[Connection] = []
        self._messages = [os.urandom(size)] * messages
        super().__init__(accepts=2)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        super().handle_event(connection, event, now)
        if isinstance(event, Connected):
            self.connections.append(connection)
            for number, payload in enumerate(self._messages):
                connection.send(0, number, 1, payload, Priority.UPDATE)


@on_loops
async def test_who_reads_nothing_holds_nobody_else_up_and_little_waits_for_it() -> None:
    master = Master(messages=64, size=MIB // 4)
    with dialled(master, receive_buffer=4_096) as slow:
        await shaken_hands(slow)
        await until(lambda: master.counters.queued_bytes > MIB, "something to wait")

        quick = TcpSide()
        await connected_over_tcp(quick, master)
        await until(lambda: len(quick.received) == 64, "all messages")

        assert master.ended is None
        slow_one, _ = master.connections
        assert slow_one.bytes_queued == 64 * MIB // 4
        assert slow_one.bytes_in_flight <= WINDOW_BYTES
        assert master.counters.queued_bytes < WINDOW_BYTES + MIB
        assert master.endpoint.counters.fragments_retransmitted == 0


@on_loops
async def test_who_asks_and_reads_no_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "QUEUE_BYTES_MAX", MIB)

    master = Master(messages=64, size=MIB // 4)
    with dialled(master, receive_buffer=4_096) as slow:
        await shaken_hands(slow)
        await until(lambda: master.ended, "the end")

    assert master.ended is not None
    assert master.ended.code == CloseCode.LOST
    assert master.ended.reason == naming("bytes", "wait")
    assert master.counters.queued_bytes == 0
