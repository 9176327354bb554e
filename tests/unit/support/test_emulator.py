"""The emulated network, with real sockets: it does to packets what its links say, and tells."""

import hashlib
import os
import signal
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from random import Random
from threading import Thread
from time import monotonic

import pytest

from support.emulator import can_have_links, emulated_link
from support.link import IP_UDP_HEADER_BYTES, Channel, Link, damage
from support.namespaces import DEVICE, Machine, ip
from support.processes import Running, python, with_tests
from support.tun import marked
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    not can_have_links(), reason="needs the right to make namespaces, and /dev/net/tun"
)

SOL_UDP, UDP_GRO = 17, 104
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
"""From linux/udp.h and linux/in.h."""


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


def test_datagrams_pass_both_ways_in_order_and_not_before_their_time() -> None:
    link = emulated_link(Link(delay=0.02), Link(delay=0.03))
    with link as (one, two), udp(one) as at_one, udp(two) as at_two:
        began = monotonic()
        send_all(at_one, at_two, numbered(200))
        there = received(at_two, 200)
        took = monotonic() - began
        send_all(at_two, at_one, numbered(100))
        back = received(at_one, 100)
        both = monotonic() - began

    assert (there, back) == (numbered(200), numbered(100))
    assert took >= 0.02
    assert both >= 0.05
    for direction, n in ((link.report.forward, 200), (link.report.back, 100)):
        assert (direction.offered, direction.delivered, direction.unread) == (n, n, 0)
        assert direction.delivered_bytes == n * (100 + IP_UDP_HEADER_BYTES)
        assert 0 <= direction.late_seconds_p99 <= direction.late_seconds_max + 1e-5
    assert 0 < link.report.cpu_seconds <= link.report.seconds


def test_nothing_passes_faster_than_the_rate() -> None:
    with (
        emulated_link(Link(rate=8e6, delay=0.0, queue_bytes=10**6)) as (one, two),
        udp(one) as at_one,
        udp(two) as at_two,
    ):
        began = monotonic()
        send_all(at_one, at_two, numbered(100, 972))
        assert received(at_two, 100) == numbered(100, 972)
        took = monotonic() - began

    assert took >= 0.1


def test_what_the_link_drops_is_lost_and_counted() -> None:
    link = emulated_link(Link(delay=0.0, drops=frozenset({0, 3, 4}).__contains__))
    with link as (one, two), udp(one) as at_one, udp(two) as at_two:
        send_all(at_one, at_two, numbered(8))
        arrived = received(at_two, 5)

    assert arrived == [numbered(8)[i] for i in (1, 2, 5, 6, 7)]
    assert link.report.forward.counts == {"listed": 3}


def test_a_full_queue_drops_what_comes_last() -> None:
    link = emulated_link(Link(rate=1e6, delay=0.0, queue_bytes=10 * 1028))
    with link as (one, two), udp(one) as at_one, udp(two) as at_two:
        send_all(at_one, at_two, numbered(30, 1000))
        arrived = received(at_two, 10)

    assert arrived[:10] == numbered(10, 1000)
    assert link.report.forward.counts["overflow"] == 30 - link.report.forward.delivered


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


def test_larger_packets_are_refused_by_the_device_or_vanish_on_the_way() -> None:
    link = emulated_link(Link(delay=0.0, mtu=1000 + IP_UDP_HEADER_BYTES), mtu=2000)
    with link as (one, two), udp(one) as at_one, udp(two) as at_two:
        at_one.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        with pytest.raises(OSError, match="too long"):
            send_all(at_one, at_two, [bytes(2000)])
        send_all(at_one, at_two, [bytes(1001), bytes(1000)])
        assert received(at_two, 1) == [bytes(1000)]

    assert link.report.forward.counts == {"too_large": 1}


def test_who_can_carry_a_mark_gets_one_in_a_queue() -> None:
    with (
        emulated_link(Link(rate=1e6, delay=0.0, mark_bytes=0)) as (one, two),
        udp(one) as at_one,
        udp(two) as at_two,
    ):
        at_two.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        tos = []
        for asked in (0b10, 0b10, 0b01, 0b00, 0b10):
            at_one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, asked)
            send_all(at_one, at_two, [bytes(1000)])
        for _ in range(5):
            _, [(_, _, value)], _, _ = at_two.recvmsg(2000, 64)
            tos.append(value[0])

    assert tos == [0b10, 0b11, 0b11, 0b00, 0b11]


def test_a_mark_keeps_the_checksum_right() -> None:
    header = bytes.fromhex("450200730000400040110000c0a80001c0a800c7")

    def total(packet: bytes) -> int:
        value: int = sum(struct.unpack("!10H", packet[:20]))
        while value > 0xFFFF:
            value = (value & 0xFFFF) + (value >> 16)
        return value

    for first in range(256):
        packet = bytearray(header)
        packet[4] = first
        packet[10:12] = (~total(bytes(packet)) & 0xFFFF).to_bytes(2, "big")
        assert total(marked(bytes(packet))) == total(bytes(packet)) == 0xFFFF
        assert marked(bytes(packet))[1] == 0b11
    assert marked(b"\x60" + bytes(39)) == b"\x60" + bytes(39), "IPv6 is left alone"


def test_a_device_that_waits_for_more_joins_what_comes() -> None:
    with ExitStack() as stack:
        one, two = stack.enter_context(emulated_link(Link(delay=0.02), gro_seconds=0.02))
        at_one, at_two = stack.enter_context(udp(one)), stack.enter_context(udp(two))
        at_two.setsockopt(SOL_UDP, UDP_GRO, 1)

        send_all(at_one, at_two, numbered(40))
        reads: list[bytes] = []
        while len(b"".join(reads)) < 40 * 100:
            reads += received(at_two, 1)

    assert b"".join(reads) == b"".join(numbered(40))
    assert len(reads) < 40


def send_whole(sock: socket.socket, payload: bytes) -> None:
    """Send it, and say that this was all."""
    sock.sendall(payload)
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_tcp_gets_through(loss: float) -> None:
    payload = os.urandom(300_000)
    link = emulated_link(Link(rate=50e6, delay=0.002, loss=loss), seed=1)
    with link as (one, two), two.inside(socket.socket) as listening:
        listening.bind((two.address, 0))
        listening.listen()
        sending = one.inside(socket.socket)
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        sending.connect(listening.getsockname())
        receiving, _ = listening.accept()
        with sending, receiving:
            thread = Thread(target=send_whole, args=(sending, payload))
            thread.start()
            digest = hashlib.sha256()
            while data := receiving.recv(2**16):
                digest.update(data)
            thread.join()

    assert digest.digest() == hashlib.sha256(payload).digest()
    # No packet is larger than the device takes: the kernel has cut what was written.
    assert link.report.forward.delivered_bytes <= 1500 * link.report.forward.delivered
    assert bool(link.report.forward.counts["lost"]) == bool(loss)


def test_the_emulator_ends_with_who_started_it() -> None:
    program = """if True:
        import signal
        from support.emulator import emulated_link
        from support.link import Link
        with emulated_link(Link()) as machines:
            print(*[machine.namespace for machine in machines], flush=True)
            signal.pause()
    """
    with Running(python(program), env=with_tests()) as process:
        namespaces = process.read_line("the names of the machines").split()
        assert f" {DEVICE}: " in ip("-n", namespaces[0], "link")

        process.send_signal(signal.SIGKILL)
        process.wait()

    try:  # the devices are gone when the emulator is
        wait_until(lambda: DEVICE not in ip("-n", namespaces[0], "link"), "its end")
    finally:
        for namespace in namespaces:
            ip("netns", "delete", namespace)


def test_an_error_in_the_block_comes_out_of_it() -> None:
    link = emulated_link(Link())

    with pytest.raises(ZeroDivisionError), link:
        _ = 1 / 0

    assert link.report.forward.offered == 0
