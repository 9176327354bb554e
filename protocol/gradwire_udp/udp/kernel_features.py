"""`Features`: optional features of a kernel for UDP; `switch_on` tries each of them.

===============  ==================================================================================
gso              one send takes a train, and the kernel or the network card cuts it: `UDP_SEGMENT`
gro              one read returns datagrams of one size from one sender: `UDP_GRO`
ecn              the ECN bits are sent with every train and returned with every read
overflow         the kernel counts what it drops for lack of buffer space: `SO_RXQ_OVFL`
dont_fragment    no datagram is fragmented on its way, and the kernel's path MTU is not used
===============  ==================================================================================

Linux has all of them, and other systems are not asked. All are optional: without GSO and GRO
each datagram takes a system call each way; without the others less is known of the network.

The kernel's buffers of a socket are asked for as well, with a warning if the system grants less.
"""

import logging
import socket
import sys
from dataclasses import dataclass
from typing import Final

SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SO_RXQ_OVFL: Final = 40
IP_MTU_DISCOVER: Final = 10
IPV6_MTU_DISCOVER: Final = 23
PMTUDISC_PROBE: Final = 3
"""Set DF and ignore path MTUs: our probes find the MTU, and forged ICMP messages cannot change it.

These numbers are Linux's; Python's `socket` has no names for them."""

logger = logging.getLogger("gradwire.udp")

BUFFER_BYTES: Final = 8 * 2**20
"""Buffer to ask for in each direction. The kernel counts its own overhead, too: datagrams of 1,400
bytes fit up to about 5 MB. That is 4 ms at 10 Gbit/s, within which a busy process comes to read."""

SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
"""Linux's numbers: go beyond the system's limit, if the process may."""

_warned = False


@dataclass(frozen=True, slots=True)
class Features:
    """The features to use if the system has them; as a result of `switch_on`, those in use."""

    gso: bool = True
    gro: bool = True
    ecn: bool = True
    overflow: bool = True
    dont_fragment: bool = True


EVERYTHING: Final = Features()


def switch_on(sock: socket.socket, wanted: Features) -> Features:
    """Enable the wanted features that this system has on a socket; return these."""
    if sys.platform != "linux":
        return Features(False, False, False, False, False)
    return Features(
        # Zero is the default: the size is sent with every train. A size set on the socket would
        # cut single datagrams, too.
        gso=wanted.gso and _set(sock, (SOL_UDP, UDP_SEGMENT, 0)),
        gro=wanted.gro and _set(sock, (SOL_UDP, UDP_GRO, 1)),
        ecn=wanted.ecn
        and _set(
            sock,
            (socket.IPPROTO_IP, socket.IP_RECVTOS, 1),
            (socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1),
        ),
        overflow=wanted.overflow and _set(sock, (socket.SOL_SOCKET, SO_RXQ_OVFL, 1)),
        dont_fragment=wanted.dont_fragment
        and _set(
            sock,
            (socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE),
            (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE),
        ),
    )


def _set(sock: socket.socket, *options: tuple[int, int, int]) -> bool:
    """Set options, those of IPv6 on IPv6 sockets only; return whether the system has them all.

    Options of IPv4 are set on IPv6 sockets, too: a dual-stack socket carries both.
    """
    for level, option, value in options:
        if level == socket.IPPROTO_IPV6 and sock.family != socket.AF_INET6:
            continue
        try:
            sock.setsockopt(level, option, value)
        except OSError:
            if level == socket.IPPROTO_IP and sock.family == socket.AF_INET6:
                continue  # on this system, IPv6 sockets have no options of IPv4
            return False
    return True


def ask_for_buffers(sock: socket.socket, size: int = BUFFER_BYTES) -> None:
    """Ask for buffers in both directions; warn once per process if less than `size` is granted."""
    global _warned
    receive, send = granted_buffers(sock, size)
    if min(receive, send) < size and not _warned:
        _warned = True
        logger.warning(
            "the system grants UDP sockets buffers of %d bytes for receiving and %d for sending,"
            " not %d: at high rates datagrams will be lost. To allow it: %s",
            receive, send, size, sysctl_line(size),
        )  # fmt: skip


def granted_buffers(sock: socket.socket, size: int) -> tuple[int, int]:
    """Ask for buffers of a size; return the bytes granted for receiving and for sending."""
    receive = _ask(sock, size, SO_RCVBUFFORCE, socket.SO_RCVBUF)
    return receive, _ask(sock, size, SO_SNDBUFFORCE, socket.SO_SNDBUF)


def sysctl_line(size: int) -> str:
    """Return the command that allows buffers of a size."""
    return (
        f"sysctl -w net.core.rmem_max={size} net.core.wmem_max={size}"
        if sys.platform == "linux"
        else f"sysctl -w kern.ipc.maxsockbuf={2 * size}"
    )


def _ask(sock: socket.socket, size: int, force: int, option: int) -> int:
    """Ask for a buffer; return the bytes that were granted, in the unit of `size`."""
    linux = sys.platform == "linux"
    for ask in (force, option) if linux else (option,):
        try:
            sock.setsockopt(socket.SOL_SOCKET, ask, size)
        except OSError:
            continue  # the process may not force it, or the system has a lower limit
        break
    granted = sock.getsockopt(socket.SOL_SOCKET, option)
    return granted // 2 if linux else granted  # Linux includes its overhead
