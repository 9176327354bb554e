"""What runs between emulated machines: where packets go, and what those that share a link share."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from support.emulator_process import DESTINATION, Line, Order, lines_of
from support.link import Link
from support.namespaces import Machine
from support.waiting import wait_until

MACHINES = tuple(Machine(name, f"10.0.0.{number}") for number, name in enumerate("abc", 1))
"""Nobody makes them."""

SIZE = 1000
ELSEWHERE = Machine("d", "10.0.0.9")


def packet_to(machine: Machine) -> bytes:
    packet = bytearray(SIZE)
    packet[DESTINATION] = socket.inet_aton(machine.address)
    return bytes(packet)


@pytest.fixture
def cables() -> Iterator[Sequence[tuple[socket.socket, socket.socket]]]:
    """Return what stands for devices: for each machine, its own end and the emulator's."""
    with ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in MACHINES]
        for end in (end for pair in pairs for end in pair):
            stack.enter_context(end).setblocking(False)
        yield pairs


def lines_between(
    cables: Sequence[tuple[socket.socket, socket.socket]], *links: Link
) -> Sequence[Line]:
    machines = MACHINES[: len(cables)]
    order = Order(machines=machines, links=links, seed=0, mtu=1500)
    return lines_of(order, [theirs.fileno() for _, theirs in cables])


def carry(lines: Sequence[Line], packets: int) -> None:
    """Read what was sent, and wait until all of it is delivered or refused."""
    for line in lines:
        line.take()

    def is_carried() -> bool:
        for line in lines:
            line.give()
        reports = [line.report(unread=0) for line in lines]
        return sum(each.delivered + each.refused for each in reports) == packets

    wait_until(is_carried, f"{packets} packets")


def test_machines_that_share_a_link_reach_each_other_by_address_and_share_its_queue(
    cables: Sequence[tuple[socket.socket, socket.socket]],
) -> None:
    lines = lines_between(cables, Link(rate=8e6, delay=0.0))
    one, two, three = [ours for ours, _ in cables]
    for sender, target in ((one, MACHINES[2]), (two, MACHINES[2]), (three, MACHINES[0])):
        sender.send(packet_to(target))

    carry(lines, packets=3)

    assert {id(line.channel) for line in lines} == {id(lines[0].channel)}
    assert [three.recv(SIZE) for _ in range(2)] == 2 * [packet_to(MACHINES[2])]
    assert one.recv(SIZE) == packet_to(MACHINES[0])
    with pytest.raises(BlockingIOError):
        two.recv(SIZE)


def test_what_is_addressed_to_nobody_is_counted(
    cables: Sequence[tuple[socket.socket, socket.socket]],
) -> None:
    lines = lines_between(cables, Link(delay=0.0))
    cables[0][0].send(packet_to(ELSEWHERE))

    carry(lines, packets=1)

    assert [line.report(unread=0).refused for line in lines] == [1, 0, 0]


def test_of_two_machines_each_direction_has_a_link_of_its_own(
    cables: Sequence[tuple[socket.socket, socket.socket]],
) -> None:
    lines = lines_between(cables[:2], Link(delay=0.0), Link(delay=0.0))
    cables[0][0].send(packet_to(ELSEWHERE))

    carry(lines, packets=1)

    assert lines[0].channel is not lines[1].channel
    assert cables[1][0].recv(SIZE) == packet_to(ELSEWHERE)
