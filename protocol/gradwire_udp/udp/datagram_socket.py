"""`DatagramSocket`: many datagrams with one system call, on a non-blocking UDP socket.

A system call costs as much for one datagram as for forty, so the kernel is asked to cut the trains
that are sent (GSO) and to join the datagrams that arrive (GRO). If it joins none, `receive` does:
it reads consecutive datagrams of one size and sender into its buffer, one after the other. That
saves no system call, but the layers above handle forty datagrams at once in little more time than
one.

::

    | datagram | datagram | ... | shorter |      | room for one more read | spare |
    0          segment                    end    TRAIN_BYTES_MAX

Every read goes to `end`. A read that does not belong to the run stays there and begins the next
run, so there is room for the largest read after the longest run.
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
from gradwire_udp.counters import SocketCounters
from gradwire_udp.udp.kernel_features import (
    EVERYTHING,
    SO_RXQ_OVFL,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    Features,
    ask_for_buffers,
    switch_on,
)

READ_BYTES_MAX: Final = 2**16
"""The most that one read returns, with GRO or without."""

SPARE_BYTES: Final = 64
"""Room after the last read: datagrams viewed as rows of an array reach beyond the last one."""

JOIN_BYTES_MAX: Final = TRAIN_BYTES_MAX // 2
"""A larger read is not joined with the next one, which would probably not fit."""

CONTROL_BYTES: Final = 128
"""Room for all control messages that are enabled, of at most 24 bytes each."""

CONTROLS_MAX: Final = 256
"""Cached control messages: one list for each segment and ECN bits."""

TRUNCATED: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
"""As an int, because comparing Python's flags takes half a microsecond."""

ControlMessages: TypeAlias = list[tuple[int, int, bytes]]

KernelRead: TypeAlias = tuple[int, ControlMessages, int, Any]
"""The result of `recvmsg_into`: size, control messages, flags, address."""


class Read(NamedTuple):
    """Datagrams of one size, one after the other; valid until the next call of `receive`."""

    view: memoryview
    segment: int
    """Bytes of every datagram but the last, which may be shorter. Never zero."""
    address: Address
    ecn: int


class DatagramSocket:
    """Sends trains and receives runs of datagrams; no method waits.

    Parameters
    ----------
    sock : socket.socket
        Bound and non-blocking, of IPv4, IPv6 or both. Its options are set here.
    wanted : Features
        Those to use, if the kernel has them.
    joins : bool
        Whether to join datagrams that the kernel has not joined.
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
        """Whether the kernel had no more datagrams after the last `receive`."""
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
        """Return the next datagrams, or `None` if there are none.

        The view is writable, and so are at least 4 bytes after it.

        Joining reads ahead, and a datagram that was read ahead does not wake the event loop. So a
        caller that stops before `drained` has to make its last call with `ahead` false.
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
        """Read ahead while datagrams belong to the run of the first; return the end of the run."""
        end = first_size = first[0]
        limit = min(TRAIN_BYTES_MAX, TRAIN_PACKETS_MAX * segment)
        while end + segment <= limit:
            got = self._read(end)
            if got == first and end + first_size <= limit:
                end += first_size  # nearly always: the read equals the first one
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
        """Read once, to `start` in the buffer; return None if nothing can be read."""
        while True:
            try:
                got = self._receive_into([self._view[start:]], CONTROL_BYTES)
            except OSError:
                # There is no datagram; or an ICMP message has come about an earlier one. Anyone can
                # forge these, so they end no connection; only silence does.
                self.drained = True
                return None
            if not got[2] & TRUNCATED:
                self.counters.reads += 1
                return got
            self.counters.truncated += 1

    def _parse_controls(self, got: KernelRead) -> tuple[int, int]:
        """Return the bytes of each datagram of a read, and the ECN bits; count drops."""
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
            else:  # IP_TOS of one byte, or IPV6_TCLASS of four: no others are enabled
                ecn = value & 3
        return segment, ecn

    # Sending.

    def send(self, train: Train) -> bool:
        """Send a train; return `False` if the kernel does not take all of it now.

        Then the caller has to send the same train, its buffers unchanged, when the socket is
        writable. Sending another train drops the rest of the first.

        Datagrams that the kernel refuses are counted and dropped: no route, a full neighbour
        table, a firewall. Loss recovery handles them like lost ones.
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
        """Send a train with one call, as `send`; `None` if the kernel does not cut it."""
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
        """Send the rest of a train datagram by datagram."""
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
                    # The kernel took a datagram and refused the train: it cannot cut here, as with
                    # a tunnel, or a network card without checksums. If it had refused the datagram,
                    # too, the address would be at fault.
                    self.features = replace(self.features, gso=False)
                    self._gso_refused = False
            rest.popleft()
        self._unfinished = None
        return True

    def _control_messages(self, segment: int, ecn: int) -> ControlMessages:
        """Return the control messages of a datagram (`segment` 0) or a train."""
        key = segment, ecn
        if key not in self._controls:
            controls: ControlMessages = []
            if segment:
                controls.append((SOL_UDP, UDP_SEGMENT, segment.to_bytes(2, sys.byteorder)))
            if self.features.ecn:
                value = ecn.to_bytes(4, sys.byteorder)
                # An IPv6 socket gets both: it sends IPv4 to an IPv4-mapped address, and each
                # version of IP ignores the message of the other.
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
