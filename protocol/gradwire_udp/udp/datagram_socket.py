"""`DatagramSocket`: many datagrams with one system call, on a non-blocking UDP socket.

A system call costs as much for one datagram as for forty, so the kernel is asked to cut what is
sent (GSO) and to join what arrives (GRO). Where it joins nothing, `receive` does: it puts
consecutive datagrams of one size and sender one behind the other into its buffer. That saves no
system call, but what comes above handles forty datagrams at once in little more time than one.

::

    | datagram | datagram | ... | shorter |      | room for one more read | spare |
    0          segment                    end    TRAIN_BYTES_MAX

Every read goes to `end`. One that does not belong to the run stays where it is and begins the next
one, so behind the longest run there is room for the largest read.
"""

import errno
import socket
import sys
from collections import deque
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from gradwire_protocol import Address
from gradwire_protocol.connection.train import ECN_MARKED, ECN_NOT, Train
from gradwire_protocol.limits import TRAIN_BYTES_MAX, TRAIN_PACKETS_MAX
from gradwire_udp.udp.counters import SocketCounters
from gradwire_udp.udp.kernel_features import (
    EVERYTHING,
    SO_RXQ_OVFL,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    Features,
    switch_on,
)
from gradwire_udp.udp.socket_buffers import ask_for_buffers

READ_BYTES_MAX: Final = 2**16
"""No read brings more, be it a datagram or what GRO has joined."""

SPARE_BYTES: Final = 64
"""Behind the last read: who looks at datagrams as rows of an array looks beyond the last one."""

JOIN_BYTES_MAX: Final = TRAIN_BYTES_MAX // 2
"""A read of more is not worth joining with the next, which would probably not fit."""

CONTROL_BYTES: Final = 128
"""Room for all control messages asked for, of at most 24 bytes each."""

CONTROLS_MAX: Final = 256
"""Control messages kept for the next train of the same segment."""

TRUNCATED: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
"""A plain number: Python's flags cost half a microsecond to compare."""

ControlMessages: TypeAlias = list[tuple[int, int, bytes]]

KernelRead: TypeAlias = tuple[int, ControlMessages, int, Any]
"""What `recvmsg_into` returns: size, control messages, flags, address."""


class Read(NamedTuple):
    """Datagrams of one size one behind the other; valid until the next call of `receive`."""

    view: memoryview
    segment: int
    """Bytes of every datagram but the last, which may be shorter. Never zero."""
    address: Address
    ecn: int


class DatagramSocket:
    """Sends trains and receives runs of datagrams; never waits.

    Parameters
    ----------
    sock : socket.socket
        Bound and non-blocking, of IPv4, IPv6 or both. Its options are set here.
    counters : SocketCounters
        Counted up as it goes.
    wanted : Features
        What to use where there is.
    joins : bool
        Whether datagrams are joined here where the kernel does not.
    """

    def __init__(
        self,
        sock: socket.socket,
        counters: SocketCounters,
        *,
        wanted: Features = EVERYTHING,
        joins: bool = True,
    ) -> None:
        self.counters = counters
        self.features = switch_on(sock, wanted)
        self.drained = False
        """Whether nothing more was there after what `receive` returned last."""
        self._socket = sock
        ask_for_buffers(sock)
        # Receiving.
        self._receive_into = sock.recvmsg_into
        self._joins = joins
        self._view = memoryview(bytearray(TRAIN_BYTES_MAX + READ_BYTES_MAX + SPARE_BYTES))
        self._next_read: tuple[int, KernelRead, int, int] | None = None
        self._drops = 0
        # Sending.
        self._ipv6 = sock.family == socket.AF_INET6
        self._controls: dict[tuple[int, int], ControlMessages] = {}
        self._unfinished: Train | None = None
        self._remaining: deque[memoryview] = deque()
        self._gso_refused = False

    @property
    def address(self) -> tuple[Any, ...]:
        """The address the socket is bound to."""
        address: tuple[Any, ...] = self._socket.getsockname()
        return address

    def fileno(self) -> int:
        """Return the descriptor for an event loop to watch."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    # Receiving.

    def receive(self, *, ahead: bool = True) -> Read | None:
        """Return what arrived next, or `None` if nothing is there.

        The view can be written to, and so can at least 4 bytes behind it.

        Joining reads ahead, and then something may be held that no event loop knows of: who does
        not go on until `drained` has to make the last call with `ahead` false.
        """
        self.drained = False
        if self._next_read is None:
            start, got = 0, self._read(0)
            if got is None:
                return None
            segment, ecn = self._parse_controls(got)
        else:
            start, got, segment, ecn = self._next_read
            self._next_read = None
        size, _, _, address = got
        if ahead and self._joins and 0 < size <= JOIN_BYTES_MAX and not size % segment:
            if start:
                self._view[:size] = self._view[start : start + size]
                start = 0
            size = self._join(got, segment, ecn)
        counters = self.counters
        count = -(-size // segment) or 1
        counters.datagrams_received += count
        counters.bytes_received += size
        if ecn == ECN_MARKED:
            counters.marked += count
        return Read(self._view[start : start + size], segment, address, ecn)

    def _join(self, first: KernelRead, segment: int, ecn: int) -> int:
        """Read on behind whole datagrams until something else comes; return the end of the run."""
        end = first_size = first[0]
        limit = min(TRAIN_BYTES_MAX, TRAIN_PACKETS_MAX * segment)
        while end + segment <= limit:
            got = self._read(end)
            if got == first and end + first_size <= limit:
                end += first_size  # as nearly always: the same in all that the kernel tells
                continue
            if got is None:
                break
            size, _, _, address = got
            its_segment, its_ecn = self._parse_controls(got)
            if (
                not size
                or (its_segment != segment and not size == its_segment < segment)
                or address != first[3]
                or its_ecn != ecn
                or end + size > limit
            ):
                self._next_read = end, got, its_segment, its_ecn
                break
            end += size
            if size % segment:
                break
        return end

    def _read(self, start: int) -> KernelRead | None:
        """Read once, to a place in the buffer."""
        while True:
            try:
                got = self._receive_into([self._view[start:]], CONTROL_BYTES)
            except OSError:
                # Nothing is there; or an ICMP message about an earlier datagram. Anyone can forge
                # one, so it is no reason to give a peer up; silence is.
                self.drained = True
                return None
            if not got[2] & TRUNCATED:
                self.counters.reads += 1
                return got
            self.counters.truncated += 1

    def _parse_controls(self, got: KernelRead) -> tuple[int, int]:
        """Return the bytes of each datagram of a read, and their ECN bits."""
        size, controls, _, _ = got
        segment, ecn = size or 1, ECN_NOT
        for level, kind, data in controls:
            value = int.from_bytes(data, sys.byteorder)
            if level == SOL_UDP:
                if kind == UDP_GRO:
                    segment = value
            elif level == socket.SOL_SOCKET:
                if kind == SO_RXQ_OVFL:
                    self.counters.receive_drops += (value - self._drops) % 2**32
                    self._drops = value
            else:  # IP_TOS of one byte, or IPV6_TCLASS of four: no other is asked for
                ecn = value & 3
        return segment, ecn

    # Sending.

    def send(self, train: Train) -> bool:
        """Send a train; return `False` if the kernel takes no more of it for now.

        Then the same train has to be given again, its buffers unchanged, when the socket can be
        written to. Instead of it another may be given, which drops what was left.

        Datagrams that the kernel refuses are counted and dropped: no route, a full neighbour
        table, a firewall. For the peer they are lost, and loss recovery is for that.
        """
        assert train.size <= TRAIN_BYTES_MAX
        assert train.count <= TRAIN_PACKETS_MAX
        if train is not self._unfinished:
            self._unfinished = None
            self._gso_refused = False
            if train.size <= train.segment or self.features.gso:
                done = self._send_whole(train)
                if done is not None:
                    return done
            self._unfinished = train
            self._remaining = _pieces(train)
        return self._send_rest(train)

    def _send_whole(self, train: Train) -> bool | None:
        """Send a train with one call; `None` if that cannot be, but perhaps cut by us."""
        count = train.count
        segment = train.segment if count > 1 else 0
        try:
            self._socket.sendmsg(
                train.buffers,
                self._control_messages(segment, train.ecn),
                0,
                train.address,  # type: ignore[arg-type]
            )
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if count > 1 and error.errno in (errno.EIO, errno.EINVAL):
                self.counters.gso_fallbacks += 1
                self._gso_refused = True
                return None
            self._count_refused(error, count)
        else:
            self._count_sent(train.size, count)
        return True

    def _send_rest(self, train: Train) -> bool:
        """Send what is left of a train datagram by datagram."""
        controls = self._control_messages(0, train.ecn)
        rest = self._remaining
        while rest:
            try:
                self._socket.sendmsg(
                    [rest[0]],
                    controls,
                    0,
                    train.address,  # type: ignore[arg-type]
                )
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self._count_refused(error, 1)
            else:
                self._count_sent(len(rest[0]), 1)
                if self._gso_refused:
                    # A network card without checksums, a tunnel: it took what it would not cut.
                    # Had it refused this as well, the address would have been to blame.
                    self.features = replace(self.features, gso=False)
                    self._gso_refused = False
            rest.popleft()
        self._unfinished = None
        return True

    def _control_messages(self, segment: int, ecn: int) -> ControlMessages:
        """Return what goes with a datagram (`segment` 0) or a train."""
        key = segment, ecn
        if key not in self._controls:
            controls: ControlMessages = []
            if segment:
                controls.append((SOL_UDP, UDP_SEGMENT, segment.to_bytes(2, sys.byteorder)))
            if self.features.ecn:
                value = ecn.to_bytes(4, sys.byteorder)
                # An IPv6 socket gets both: to an address of IPv4 mapped into IPv6 it sends IPv4,
                # and each version leaves the other's message alone.
                controls.append((socket.IPPROTO_IP, socket.IP_TOS, value))
                if self._ipv6:
                    controls.append((socket.IPPROTO_IPV6, socket.IPV6_TCLASS, value))
            if len(self._controls) >= CONTROLS_MAX:
                self._controls.clear()
            self._controls[key] = controls
        return self._controls[key]

    def _count_sent(self, size: int, count: int) -> None:
        counters = self.counters
        counters.trains_sent += 1
        counters.datagrams_sent += count
        counters.bytes_sent += size

    def _count_refused(self, error: OSError, count: int) -> None:
        if error.errno == errno.EMSGSIZE:
            self.counters.oversize += count
        else:
            self.counters.send_errors += count


def _pieces(train: Train) -> deque[memoryview]:
    """Return a train's datagrams."""
    buffers, segment = train.buffers, train.segment
    joined = buffers[0] if len(buffers) == 1 else memoryview(b"".join(buffers))
    return deque(joined[at : at + segment] for at in range(0, train.size, segment))
