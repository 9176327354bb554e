"""`TcpDriver`: TCP connections on an event loop, driving an endpoint and its application.

For networks that block UDP. Every peer has its own TCP connection, which carries the same packets
as datagrams would, each after its length: see `framing`. TCP does loss recovery and congestion
control. The endpoint knows that no packet is lost, and its window bounds the bytes that are queued
here for a slow peer. So a slow peer delays no other one.

When a TCP connection ends, its connections of the endpoint end at once, by `disconnect_address`. A
TCP connection that no connection of the endpoint uses for a while is closed.
"""

import asyncio
import errno
import os
import socket
from contextlib import suppress
from time import monotonic
from typing import Final

from gradwire_protocol import Address, Endpoint
from gradwire_protocol.connection.train import ECN_NOT, Train
from gradwire_protocol.limits import MIB, TRAIN_BYTES_MAX, TRAIN_PACKETS_MAX
from gradwire_udp.accepting import Acceptor
from gradwire_udp.counters import TcpCounters
from gradwire_udp.endpoint_driver import Application, EndpointDriver
from gradwire_udp.sockets import SocketAddress
from gradwire_udp.tcp.framing import LENGTH_BYTES, FramingError, ReadBuffer
from gradwire_udp.tcp.peer import TcpAddress, TcpPeer

READ_BYTES: Final = 2**18
"""Bytes of one read: many packets at once, and few enough for a processor's cache."""

READS_PER_WAKE_MAX: Final = 4
"""Reads from one peer before the rest of the event loop runs."""

PEERS_SPARE: Final = 8
"""TCP connections beyond those that the endpoint accepts: of strangers, of peers that have left,
and of peers that are still to be told that there is no room."""

UNUSED_SECONDS_MAX: Final = 10.0
"""A TCP connection that no connection of the endpoint uses for so long is closed."""

SWEEP_SECONDS: Final = 1.0
"""How often the driver looks for unused TCP connections."""

QUEUE_BYTES_MAX: Final = 16 * MIB
"""Several times a window of packets in flight. A peer for which more is queued asks for answers and
reads none."""


class TcpDriver(EndpointDriver):
    """Drives an endpoint over TCP connections until it is closed.

    `listener` is listening and non-blocking, and the driver closes it; without it, the driver can
    only dial.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        counters: TcpCounters,
        listener: socket.socket | None = None,
    ) -> None:
        super().__init__(endpoint, application, loop)
        self.counters = counters
        self.was_accepted = False
        """Whether a peer that was dialled has accepted a TCP connection."""
        self._peers_max = endpoint.connections_max + PEERS_SPARE
        self._peers: dict[Address, TcpPeer] = {}
        self._sweep_at = 0.0
        self._buffer = ReadBuffer(READ_BYTES)
        self._scratch = memoryview(bytearray(TRAIN_BYTES_MAX + LENGTH_BYTES * TRAIN_PACKETS_MAX))
        self._acceptor = None if listener is None else Acceptor(loop, listener, self._accept, "TCP")

    def dial(self, address: SocketAddress, family: socket.AddressFamily) -> TcpAddress:
        """Begin a TCP connection; return its address, to which the endpoint can then connect.

        If the TCP connection fails, the endpoint is told by `disconnect_address`.
        """
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        failure = sock.connect_ex(address)
        peer = self._add(sock, address, connected=False)
        if failure in (0, errno.EINPROGRESS):  # nearly always: connecting takes a round trip
            self._loop.add_writer(sock.fileno(), self._writable, peer)
        else:
            self._loop.call_soon(self._fail, peer, OSError(failure, os.strerror(failure)))
        return peer.address

    # Coming in.

    def _accept(self, sock: socket.socket, address: SocketAddress) -> None:
        self.counters.accepted += 1
        if len(self._peers) >= self._peers_max and not self._evict_idle():
            self.counters.turned_away += 1
            sock.close()
            return
        peer = self._add(sock, address, connected=True)
        self._loop.add_reader(sock.fileno(), self._readable, peer)
        self._set_timer(monotonic())

    def _readable(self, peer: TcpPeer) -> None:
        """Read from a peer, and give its packets to the endpoint."""
        try:
            for _ in range(READS_PER_WAKE_MAX):
                size = peer.receive()
                if size is None:
                    break
                if not size:
                    self.counters.broken += 1
                    self._drop(peer, "its TCP connection was closed by the other side")
                    break
                self._receive_packets(peer, size)
                if not self._report_events(monotonic()):
                    return
                if size < READ_BYTES // 2:
                    break  # little more can be there
        except OSError as error:
            self.counters.broken += 1
            self._drop(peer, f"its TCP connection broke: {error.strerror or error}")
        except FramingError as error:
            self.counters.violations += 1
            self._drop(peer, f"its TCP connection carried {error}")
        self.turn()

    def _receive_packets(self, peer: TcpPeer, size: int) -> None:
        endpoint, counters, now = self._endpoint, self.counters, monotonic()
        for view, segment in peer.stream.packets(size):
            counters.packets_received += -(-len(view) // segment)
            endpoint.receive(view, segment, peer.address, ECN_NOT, now)

    # Going out.

    def _send(self, train: Train) -> None:
        peer = self._peers.get(train.address)
        if peer is None:
            return  # it has ended, and the endpoint was told
        waited = peer.queued_bytes
        try:
            peer.send(train, self._scratch)
        except OSError as error:
            self._loop.call_soon(self._fail, peer, error)
            return
        if not waited and peer.queued_bytes and peer.connected:
            self._loop.add_writer(peer.socket.fileno(), self._writable, peer)
        elif peer.queued_bytes > QUEUE_BYTES_MAX:
            self.counters.broken += 1
            waiting = f"{peer.queued_bytes} bytes wait for it; the limit is {QUEUE_BYTES_MAX}"
            self._drop(peer, waiting)

    def _writable(self, peer: TcpPeer) -> None:
        """Finish connecting, or go on sending: the kernel takes data again."""
        try:
            if not peer.connected:
                peer.on_connected()
                self.was_accepted = True
                self._loop.add_reader(peer.socket.fileno(), self._readable, peer)
            done = peer.flush()
        except OSError as error:
            self._fail(peer, error)
            return
        if done:
            self._loop.remove_writer(peer.socket.fileno())
            self.turn()

    # Ends.

    def _fail(self, peer: TcpPeer, error: OSError) -> None:
        """Drop a peer after a failure to send, once all that it has sent was read."""
        if peer.address not in self._peers or self._closed:
            return
        reason = error.strerror or str(error)
        if peer.connected:
            with suppress(OSError, FramingError):
                while size := peer.receive():
                    self._receive_packets(peer, size)
            reason = f"its TCP connection broke: {reason}"
        self.counters.broken += 1
        self._drop(peer, reason)
        self.turn()

    def _drop(self, peer: TcpPeer, reason: str) -> None:
        self._remove(peer)
        self._endpoint.disconnect_address(peer.address, reason)

    def _add(self, sock: socket.socket, address: SocketAddress, *, connected: bool) -> TcpPeer:
        shown = TcpAddress(address[0], address[1])
        now = monotonic()
        peer = TcpPeer(
            sock, shown, self._buffer, self.counters, connected=connected, unused_since=now
        )
        if not self._peers:
            self._sweep_at = now + SWEEP_SECONDS
        self._peers[shown] = peer
        self.counters.open += 1
        return peer

    def _remove(self, peer: TcpPeer) -> None:
        del self._peers[peer.address]
        self.counters.open -= 1
        fileno = peer.socket.fileno()
        self._loop.remove_reader(fileno)
        self._loop.remove_writer(fileno)
        peer.close()

    def _evict_idle(self) -> bool:
        """Drop the peer that was unused for the longest time; return whether there was one."""
        self._mark_unused(monotonic())
        unused = [peer for peer in self._peers.values() if peer.unused_since is not None]
        if not unused:
            return False
        oldest = min(unused, key=lambda peer: peer.unused_since or 0.0)
        self.counters.turned_away += 1
        self._drop(oldest, "its TCP connection had to make room for others")
        return True

    def _mark_unused(self, now: float) -> None:
        used = {connection.address for connection in self._endpoint.connections()}
        for address, peer in self._peers.items():
            if address in used:
                peer.unused_since = None
            elif peer.unused_since is None:
                peer.unused_since = now

    def _own_deadline(self) -> float | None:
        return self._sweep_at if self._peers else None

    def _fire(self) -> None:
        now = monotonic()
        if self._peers and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._sweep(now)
        super()._fire()

    def _sweep(self, now: float) -> None:
        """Close TCP connections that no connection of the endpoint uses."""
        self._mark_unused(now)
        for peer in list(self._peers.values()):
            if peer.unused_since is not None and now >= peer.unused_since + UNUSED_SECONDS_MAX:
                self.counters.turned_away += 1
                self._drop(peer, f"its TCP connection was not used for {UNUSED_SECONDS_MAX:g} s")

    def _is_quiet(self) -> bool:
        return super()._is_quiet() and not self.counters.queued_bytes

    def _close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for peer in list(self._peers.values()):
            self._remove(peer)
