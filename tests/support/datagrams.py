"""Datagram sockets on loopback, and datagrams one by one."""

import socket
from collections.abc import Sequence
from select import select
from typing import TypeAlias

import pytest

from gradwire_protocol import Address
from gradwire_protocol.connection.train import Train
from gradwire_udp import DatagramSocket, Features, Read, SocketCounters, open_socket

Datagram: TypeAlias = tuple[bytes, Address, int]
"""Payload, sender, ECN bits."""


def _here() -> Features:
    with open_socket(("127.0.0.1", 0)) as sock:
        return DatagramSocket(sock, SocketCounters()).features


HERE = _here()
"""What this system has."""

NOTHING = Features(gso=False, gro=False, ecn=False, overflow=False, dont_fragment=False)

needs_gso = pytest.mark.skipif(not HERE.gso, reason="this system has no GSO")
needs_gro = pytest.mark.skipif(not (HERE.gso and HERE.gro), reason="this system has no GRO")
needs_ecn = pytest.mark.skipif(not HERE.ecn, reason="this system tells no ECN bits")
needs_overflow = pytest.mark.skipif(not HERE.overflow, reason="this system counts no overflows")


def has_ipv6() -> bool:
    """Return whether there is an IPv6 loopback address."""
    try:
        open_socket(("::1", 0), socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this system has no IPv6")


def train(
    sizes: Sequence[int], address: Address, *, ecn: int = 0, fill: int = 0, pieces: int = 1
) -> Train:
    """Return datagrams of these sizes, each of its own bytes, from so many buffers."""
    joined = b"".join(bytes([(fill + i) % 256]) * size for i, size in enumerate(sizes))
    step = -(-len(joined) // pieces) or 1
    buffers = [memoryview(joined)[at : at + step] for at in range(0, len(joined) or 1, step)]
    return Train(buffers, sizes[0] or 1, len(joined), address, ecn)


def cut(read: Read) -> list[Datagram]:
    """Return the datagrams of a read, copied."""
    payloads = [
        bytes(read.view[at : at + read.segment])
        for at in range(0, len(read.view) or 1, read.segment)
    ]
    return [(payload, read.address, read.ecn) for payload in payloads]


def receive_reads(sock: DatagramSocket, n: int) -> list[list[Datagram]]:
    """Read until so many datagrams have come, and no further; as they came."""
    reads: list[list[Datagram]] = []
    while sum(map(len, reads)) < n:
        read = sock.receive()
        if read is None:
            came = sum(map(len, reads))
            assert select([sock], [], [], 5.0)[0], f"of {n} datagrams {came} came"
        else:
            reads.append(cut(read))
    return reads


def receive_datagrams(sock: DatagramSocket, n: int) -> list[Datagram]:
    """Read until so many datagrams have come."""
    return [datagram for read in receive_reads(sock, n) for datagram in read]
