"""Two machines on one: what is done there stays there, and their network cards do as they are told.

A cable between them is real enough that trains of datagrams are cut, and joined, as by hardware.
"""

import socket
import struct

import pytest

from support.namespaces import DEVICE, Machine, can_have_machines, two_machines, veth_pair
from support.offloads import offloads, set_offloads

pytestmark = pytest.mark.skipif(
    not can_have_machines(), reason="needs the right to make namespaces"
)

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
"""From linux/udp.h."""


def udp(machine: Machine) -> socket.socket:
    """Return a socket on a machine that reads what GRO has joined."""

    def opened() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((machine.address, 0))
        return sock

    sock = machine.inside(opened)
    sock.settimeout(10)
    sock.setsockopt(SOL_UDP, UDP_GRO, 1)
    return sock


def reads_of_a_train(one: Machine, two: Machine, count: int, size: int) -> list[int]:
    """Send a train from one machine to the other; return the size of every read."""
    data = b"".join(bytes([i]) * size for i in range(count))
    with udp(one) as sending, udp(two) as receiving:
        segment = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))]
        sending.sendmsg([data], segment, 0, receiving.getsockname())
        reads: list[bytes] = []
        while len(b"".join(reads)) < len(data):
            reads.append(receiving.recv(65536))
    assert b"".join(reads) == data
    return [len(read) for read in reads]


def test_what_is_opened_inside_stays_there() -> None:
    with two_machines() as (one, two), udp(one) as at_one, udp(two) as at_two:
        at_one.sendto(b"hello", at_two.getsockname())

        assert at_two.recvfrom(100) == (b"hello", at_one.getsockname())
        with pytest.raises(OSError, match="assign requested address"), socket.socket() as outside:
            outside.bind((one.address, 0))


def test_there_can_be_several_pairs_at_once() -> None:
    with two_machines() as pair, two_machines(mtu=9000) as other:
        assert len({machine.namespace for machine in (*pair, *other)}) == 4


@pytest.mark.parametrize("uso", [False, True])
@pytest.mark.parametrize("gro", [False, True])
def test_network_cards_do_what_they_are_told_to(uso: bool, gro: bool) -> None:
    with veth_pair(uso=uso, gro=gro) as (one, two):
        for machine in (one, two):
            on = machine.inside(lambda: offloads(DEVICE))
            assert on["tx-udp-segmentation"] == on["tx-tcp-segmentation"] == uso
            assert on["rx-gro"] == gro
        reads = reads_of_a_train(one, two, 44, 1400)

    if uso:
        assert reads == [44 * 1400], "it was never cut"
    elif gro:
        assert len(reads) < 44, "it was cut, and joined again as far as it came together"
    else:
        assert reads == [1400] * 44


def test_large_frames_are_cut_and_joined_as_well() -> None:
    with veth_pair(mtu=9000) as (one, two):
        reads = reads_of_a_train(one, two, 7, 8900)

    assert sum(reads) == 7 * 8900
    assert all(read % 8900 == 0 for read in reads)


def test_a_card_says_what_it_cannot_do() -> None:
    with two_machines() as (one, _):
        with pytest.raises(OSError, match="knows no levitation"):
            one.inside(lambda: set_offloads(DEVICE, {"levitation": True}))
        with pytest.raises(OSError, match="tx-checksum-fcoe-crc be changed"):
            one.inside(lambda: set_offloads(DEVICE, {"tx-checksum-fcoe-crc": True}))
