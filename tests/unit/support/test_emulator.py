"""The emulated network, with real sockets: it does to packets what its links say, and tells."""

import socket
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from support.emulator import can_have_links, emulated_link
from support.link import IP_UDP_HEADER_BYTES, Channel, Link, damage
from support.namespaces import Machine

pytestmark = pytest.mark.skipif(
    not can_have_links(), reason="needs the right to make namespaces, and /dev/net/tun"
)


def udp(machine: Machine) -> socket.socket:
    """Return a socket on a machine."""

    def opened() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((machine.address, 0))
        return sock

    sock = machine.inside(opened)
    sock.settimeout(10)
    return sock


def received(sock: socket.socket, count: int) -> list[bytes]:
    """Wait for so many datagrams; return them."""
    return [sock.recv(65536) for _ in range(count)]


def send_all(sock: socket.socket, to: socket.socket, datagrams: Iterable[bytes]) -> None:
    """Send datagrams one by one."""
    for datagram in datagrams:
        sock.sendto(datagram, to.getsockname())


def numbered(n: int, size: int = 100) -> list[bytes]:
    """Return datagrams that are all different."""
    return [i.to_bytes(4, "big") + bytes(size - 4) for i in range(n)]


def foretold(link: Link, seed: int, datagrams: Sequence[bytes]) -> list[bytes]:
    """Return what arrives if the emulator does what its `Channel` says, but for the order.

    A datagram that is damaged arrives only if something was appended, which is cut off again: the
    checksums of IP and UDP see to the rest.
    """
    channel, random = Channel(link), Random(2 * seed)
    arriving = []
    for datagram in datagrams:
        packet = bytes(IP_UDP_HEADER_BYTES) + datagram
        for _, _, damaged in channel.admit(len(packet), 0.0, random):
            if not damaged or damage(packet, random).startswith(packet):
                arriving.append(datagram)
    return arriving


@pytest.mark.parametrize(
    ("link", "in_order"),
    [
        (Link(delay=0.0, duplication=0.7, copies_max=3), True),
        (Link(delay=0.0, jitter=0.05, duplication=0.7), False),
        (Link(delay=0.0, corruption=0.7), True),
        (Link(delay=0.0, loss=0.3, loss_burst=3.0), True),
        (Link(delay=0.0, reordering=0.2, reordering_delay=0.05), False),
    ],
)
def test_the_seed_says_what_arrives_of_the_same_packets(link: Link, in_order: bool) -> None:
    expected = foretold(link, 5, numbered(60))

    emulated = emulated_link(link, seed=5)
    with emulated as (one, two), udp(one) as at_one, udp(two) as at_two:
        send_all(at_one, at_two, numbered(60))
        arrived = received(at_two, len(expected))

    assert sorted(arrived) == expected
    assert (arrived == expected) == in_order
    assert expected != numbered(60) or link.reordering, "or this would test nothing"
