"""The kernel hands packets to the socket whose number is in their session id."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gradwire_protocol import SessionIds, UsageError
from gradwire_protocol.wire.packets import TRANSPORT, TRANSPORT_HEADER
from gradwire_server.shards import steering
from gradwire_server.shards.steering import open_others
from gradwire_udp import open_socket
from support.wording import naming

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can steer packets")

COUNT = 5
ADDRESSES = [
    (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
    (socket.AF_INET6, "::1", "::1"),
    (socket.AF_INET6, "::", "::1"),
    (socket.AF_INET6, "::", "127.0.0.1"),
]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def group_at(
    stack: ExitStack, host: str, family: socket.AddressFamily, count: int = COUNT
) -> list[socket.socket]:
    first = stack.enter_context(open_socket((host, 0), family))
    return [first, *map(stack.enter_context, open_others(first, count))]


def send(stack: ExitStack, host: str, to: socket.socket, datagram: bytes) -> None:
    """Send a datagram from a port that none has been sent from before."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sender = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
    sender.sendto(datagram, (host, to.getsockname()[1]))


def packet_to(session_id: int) -> bytes:
    return TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, session_id, 7)


def arrived_at(group: list[socket.socket]) -> list[int]:
    """Return the place of each socket once for each datagram that waits there."""
    places = []
    for place, sock in enumerate(group):
        while True:
            try:
                sock.recv(2_000)
            except BlockingIOError:
                break
            places.append(place)
    return places


@linux_only
@pytest.mark.parametrize(("family", "bound", "host"), ADDRESSES)
def test_a_packet_goes_to_the_shard_that_gave_out_its_session_id_wherever_it_comes_from(
    stack: ExitStack, family: socket.AddressFamily, bound: str, host: str
) -> None:
    group = group_at(stack, bound, family)

    for index in range(COUNT):
        session_id = SessionIds(index, COUNT).to_own(0x89ABCDEF)
        for _ in range(8):
            send(stack, host, group[0], packet_to(session_id))
        assert arrived_at(group) == [index] * 8


@linux_only
def test_first_packets_spread_by_what_their_senders_drew(stack: ExitStack) -> None:
    group = group_at(stack, "127.0.0.1", socket.AF_INET)

    for drawn in range(256):
        send(stack, "127.0.0.1", group[0], packet_to(0x01020300 | drawn))

    assert arrived_at(group) == sorted(drawn % COUNT for drawn in range(256))


@linux_only
@pytest.mark.parametrize("datagram", [b"", b"\x01", b"\x01\x00\x00\x00"])
def test_what_is_too_short_for_a_session_id_goes_to_the_first(
    stack: ExitStack, datagram: bytes
) -> None:
    group = group_at(stack, "127.0.0.1", socket.AF_INET)

    send(stack, "127.0.0.1", group[0], datagram)

    assert arrived_at(group) == [0]


@linux_only
def test_a_shard_that_nobody_listens_to_takes_nobody_elses_place(stack: ExitStack) -> None:
    group = group_at(stack, "127.0.0.1", socket.AF_INET)
    of_process = stack.enter_context(group[1].dup())
    of_process.close()  # as when the process ends, and this one still has it

    for index in range(COUNT):
        send(stack, "127.0.0.1", group[0], packet_to(index))

    assert arrived_at(group) == list(range(COUNT))


@linux_only
def test_nobody_else_can_listen_at_the_address_of_a_group(stack: ExitStack) -> None:
    group = group_at(stack, "127.0.0.1", socket.AF_INET)

    with pytest.raises(OSError, match="in use"):
        open_socket(group[0].getsockname())


@linux_only
def test_a_kernel_that_cannot_do_it_is_named_with_what_to_do(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "SO_ATTACH_REUSEPORT_CBPF", 9_999)
    first = stack.enter_context(open_socket(("127.0.0.1", 0)))

    with pytest.raises(UsageError, match=naming("processes", 2, "[Errno 92]", "--processes 1")):
        open_others(first, 2)


def test_so_is_another_system(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    first = stack.enter_context(open_socket(("127.0.0.1", 0)))

    with pytest.raises(UsageError, match=naming("processes", 3, "Linux", "--processes 1")):
        open_others(first, 3)
