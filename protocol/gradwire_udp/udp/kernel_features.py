"""`Features`: what a kernel does for UDP beyond carrying a datagram, found out by asking for it.

===============  ==================================================================================
gso              one send takes a train and the kernel, or the network card, cuts it: `UDP_SEGMENT`
gro              one read brings datagrams of one size from one sender: `UDP_GRO`
ecn              the ECN bits are sent with every train and told with every read
overflow         the kernel tells how much it dropped for want of buffer space: `SO_RXQ_OVFL`
dont_fragment    no datagram is cut on the way, and the kernel's guess of the path is not asked
===============  ==================================================================================

All of them are Linux's; other systems have the last one at most. Nothing depends on any of them:
without GSO and GRO a datagram costs a system call each way, without the others one knows less.
"""

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
"""Set DF and do not remember path MTUs: who sends probes finds that out, and forged ICMP does not.

These are Linux's numbers, which Python's `socket` does not name."""

DARWIN_IP_DONTFRAG: Final = 28
DARWIN_IPV6_DONTFRAG: Final = 62


@dataclass(frozen=True, slots=True)
class Features:
    """What to use where there is, and after `switch_on` what is in use."""

    gso: bool = True
    gro: bool = True
    ecn: bool = True
    overflow: bool = True
    dont_fragment: bool = True


EVERYTHING: Final = Features()


def switch_on(sock: socket.socket, wanted: Features) -> Features:
    """Set a socket up for what is wanted and this system has; return what that is."""
    if sys.platform != "linux":
        dont_fragment = (
            wanted.dont_fragment
            and sys.platform == "darwin"
            and _set(
                sock,
                (socket.IPPROTO_IP, DARWIN_IP_DONTFRAG, 1),
                (socket.IPPROTO_IPV6, DARWIN_IPV6_DONTFRAG, 1),
            )
        )
        return Features(False, False, False, False, dont_fragment)
    return Features(
        # Zero is what it is already: the size comes with every train. Left on the socket it
        # would cut single datagrams, too.
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
    """Set options, of IPv6 only where it is; return whether the system has them all.

    IP's own are set on IPv6 sockets, too: a dual-stack socket carries both.
    """
    for level, option, value in options:
        if level == socket.IPPROTO_IPV6 and sock.family != socket.AF_INET6:
            continue
        try:
            sock.setsockopt(level, option, value)
        except OSError:
            if level == socket.IPPROTO_IP and sock.family == socket.AF_INET6:
                continue  # a system whose IPv6 sockets carry no IPv4, or none but mapped
            return False
    return True
