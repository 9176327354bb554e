"""Datagrams come as they were sent, however the kernel and we join them on the way."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from select import select

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.connection.train import ECN_MARKED, Train
from gradwire_protocol.limits import TRAIN_BYTES_MAX, TRAIN_PACKETS_MAX
from gradwire_udp import DatagramSocket, Features, SocketCounters, open_socket
from gradwire_udp.udp import datagram_socket
from support.datagrams import (
    HERE,
    NOTHING,
    needs_ecn,
    needs_gro,
    needs_gso,
    needs_ipv6,
    needs_overflow,
    receive_datagrams,
    receive_reads,
    train,
)


@pytest.fixture
def sockets() -> Iterator["Sockets"]:
    with Sockets() as made:
        yield made


class Sockets(ExitStack):
    """Makes datagram sockets on loopback, and closes them in the end."""

    def __call__(
        self,
        host: str = "127.0.0.1",
        *,
        wanted: Features = HERE,
        joins: bool = True,
        buffer_bytes: int | None = None,
    ) -> DatagramSocket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = self.enter_context(open_socket((host, 0), family))
        made = DatagramSocket(sock, SocketCounters(), wanted=wanted, joins=joins)
        if buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        return made


# There and back.

OFF = {
    "all on": HERE,
    "no gso": Features(gso=False),
    "no gro": Features(gro=False),
    "no ecn": Features(ecn=False),
    "no overflow": Features(overflow=False),
    "may fragment": Features(dont_fragment=False),
    "none on": NOTHING,
}
PATHS = [
    pytest.param("127.0.0.1", "127.0.0.1", "127.0.0.1", id="IPv4"),
    pytest.param("::1", "::1", "::1", id="IPv6", marks=needs_ipv6),
    pytest.param("127.0.0.1", "::", "127.0.0.1", id="IPv4 to dual stack", marks=needs_ipv6),
    pytest.param("::", "127.0.0.1", "::ffff:127.0.0.1", id="dual to IPv4", marks=needs_ipv6),
    pytest.param("::", "::", "::ffff:127.0.0.1", id="mapped on dual stacks", marks=needs_ipv6),
    pytest.param("::1", "::", "::1", id="IPv6 to dual stack", marks=needs_ipv6),
]


@pytest.mark.parametrize("wanted", OFF.values(), ids=OFF)
@pytest.mark.parametrize(("sender", "receiver", "to"), PATHS)
def test_trains_go_there_and_answers_come_back(
    sockets: Sockets, sender: str, receiver: str, to: str, wanted: Features
) -> None:
    """The answer goes to the address that was received, whichever way it is written."""
    one, other = sockets(sender, wanted=wanted), sockets(receiver, wanted=wanted)
    there = train([1_400] * 43 + [77], (to, other.address[1]), pieces=3)

    assert one.send(there)
    came = receive_datagrams(other, 44)
    back = train([500, 500, 20], came[0][1])
    assert other.send(back)
    answers = receive_datagrams(one, 3)

    assert [payload for payload, _, _ in came] == there.datagrams()
    assert [payload for payload, _, _ in answers] == back.datagrams()
    for sock, sent, received in ((one, there, back), (other, back, there)):
        assert sock.counters.datagrams_sent == sent.count
        assert sock.counters.bytes_sent == sent.size
        assert sock.counters.datagrams_received == received.count
        assert sock.counters.bytes_received == received.size


@needs_ecn
@pytest.mark.parametrize("ecn", range(4))
@pytest.mark.parametrize(("sender", "receiver", "to"), PATHS)
def test_the_ecn_bits_arrive(
    sockets: Sockets, sender: str, receiver: str, to: str, ecn: int
) -> None:
    one, other = sockets(sender), sockets(receiver)

    one.send(train([100] * 3, (to, other.address[1]), ecn=ecn))
    one.send(train([100], (to, other.address[1]), ecn=ecn))

    assert [bits for _, _, bits in receive_datagrams(other, 4)] == [ecn] * 4
    assert other.counters.marked == (4 if ecn == ECN_MARKED else 0)


@needs_gro
def test_one_call_sends_a_train_and_one_receives_it(sockets: Sockets) -> None:
    one, other = sockets(), sockets(joins=False)

    one.send(train([1_400] * 44, other.address))

    assert len(receive_reads(other, 44)) == 1
    assert (one.counters.trains_sent, other.counters.reads) == (1, 1)


def test_where_nothing_is_there_nothing_is_returned(sockets: Sockets) -> None:
    sock = sockets()

    assert sock.receive() is None
    assert sock.drained


# Joining.

Item = tuple[int, list[int], int]
"""Which sender, the sizes of a train, and its ECN bits."""


@st.composite
def items(draw: st.DrawFn) -> Item:
    segment = draw(st.sampled_from([0, 1, 2, 100, 1_200, 1_400, 9_000]) | st.integers(0, 3_000))
    count = draw(st.integers(1, 6)) if segment else 1
    last = draw(st.integers(1, segment)) if count > 1 else segment
    sizes = [segment] * (count - 1) + [last]
    return draw(st.integers(0, 1)), sizes, draw(st.sampled_from([0, 0, 2, 3]))


@given(sent=st.lists(items(), max_size=30), gso=st.booleans())
def test_whoever_joins_them_they_are_the_same_datagrams(sent: list[Item], gso: bool) -> None:
    with Sockets() as sockets:
        senders = [sockets(wanted=Features(gso=gso)) for _ in range(2)]
        by_us, by_kernel = sockets(wanted=Features(gro=False)), sockets(joins=False)
        by_both, by_nobody = sockets(), sockets(wanted=Features(gro=False), joins=False)
        receivers = [by_us, by_kernel, by_both, by_nobody]
        expected = []
        for i, (sender, sizes, ecn) in enumerate(sent):
            for receiver in receivers:
                senders[sender].send(train(sizes, receiver.address, ecn=ecn, fill=i))
            payloads = train(sizes, None, fill=i).datagrams() or [b""]
            bits = ecn if HERE.ecn else 0
            expected += [(payload, senders[sender].address, bits) for payload in payloads]

        received = [receive_datagrams(receiver, len(expected)) for receiver in receivers]

        assert received == [expected] * 4
        for receiver in receivers:
            assert receiver.receive() is None
            assert receiver.drained


def test_datagrams_of_one_size_and_sender_become_one_read(sockets: Sockets) -> None:
    one, other = sockets(wanted=NOTHING), sockets(wanted=NOTHING)
    sent = [
        (one.send(train([100] * 5 + [30], other.address)), 6),  # a shorter one ends it
        (one.send(train([100] * 2, other.address)), 2),  # a longer one does not belong to it
        (one.send(train([101], other.address)), 1),
        (one.send(train([0], other.address)), 1),
        (one.send(train([7] * 3, other.address)), 3),
    ]

    reads = receive_reads(other, 13)

    assert [len(read) for read in reads] == [count for _, count in sent]
    assert other.counters.reads == 13


@pytest.mark.parametrize(
    ("size", "together"),
    [(10, TRAIN_PACKETS_MAX), (1_400, TRAIN_BYTES_MAX // 1_400), (9_000, 7), (30_000, 2)],
)
def test_a_run_has_an_end(sockets: Sockets, size: int, together: int) -> None:
    one, other = sockets(), sockets()
    for _ in range(2 * together + 1):
        one.send(train([size], other.address))

    reads = receive_reads(other, 2 * together + 1)

    assert [len(read) for read in reads] == [together, together, 1]


@needs_gro
def test_what_the_kernel_joined_is_joined_on_and_never_too_much(sockets: Sockets) -> None:
    one, other = sockets(), sockets()
    for count in (10, 10, 20, 5, 40):
        one.send(train([1_400] * count, other.address))

    reads = receive_reads(other, 85)

    assert [len(read) for read in reads] == [45, 40]
    assert other.counters.reads == 5


def test_it_is_known_whether_there_may_be_more(sockets: Sockets) -> None:
    one, other = sockets(), sockets()
    for size in (100, 200, 200):
        one.send(train([size], other.address))
    seen = []
    for _ in range(2):
        read = other.receive()
        assert read
        seen.append((len(read.view), other.drained))

    assert seen == [(100, False), (400, True)]


@pytest.mark.parametrize("first", [100, 200])
def test_who_reads_not_ahead_leaves_nothing_behind(sockets: Sockets, first: int) -> None:
    """Whether it was held or not, the next one is still with the kernel, which tells of it."""
    one, other = sockets(), sockets()
    for size in (100, 200, 200):
        one.send(train([size], other.address))
    if first == 200:
        other.receive()

    read = other.receive(ahead=False)

    assert read
    assert len(read.view) == first
    assert select([other], [], [], 0.0)[0] == [other]
    receive_datagrams(other, 2 if first == 100 else 1)


@pytest.mark.parametrize("sizes", [[1], [63_000], [1_400] * 45, [1_000] * 64])
def test_there_is_room_behind_what_was_read_and_it_can_be_written_to(
    sockets: Sockets, sizes: list[int]
) -> None:
    one, other = sockets(), sockets()
    for length in (sizes, [sizes[0] + 1], sizes):  # the second and the third are held
        one.send(train(length[:1], other.address))
        one.send(Train([memoryview(bytes(sum(sizes)))], sizes[0], sum(sizes), other.address))
        read = other.receive()
        while read is not None:
            whole = memoryview(read.view.obj)
            buffer, view = np.frombuffer(whole, "u1"), np.frombuffer(read.view, "u1")
            begin = view.ctypes.data - buffer.ctypes.data
            assert not read.view.readonly
            assert begin + view.size + 4 <= buffer.size
            read = other.receive()


# What goes wrong.


def test_what_does_not_fit_into_the_buffer_is_dropped_and_counted(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sockets()
    with monkeypatch.context() as patch:
        patch.setattr(datagram_socket, "TRAIN_BYTES_MAX", 0)
        patch.setattr(datagram_socket, "READ_BYTES_MAX", 1_000 - datagram_socket.SPARE_BYTES)
        other = sockets(joins=False)
    for size in (1_001, 1_000, 5_000, 999):
        one.send(train([size], other.address))

    received = receive_datagrams(other, 2)

    assert [len(payload) for payload, _, _ in received] == [1_000, 999]
    assert other.counters.truncated == 2
    assert other.counters.datagrams_received == 2


@needs_overflow
@pytest.mark.parametrize("wanted", [HERE, Features(gro=False)])
def test_what_the_kernel_drops_for_want_of_space_is_counted(
    sockets: Sockets, wanted: Features
) -> None:
    one, other = sockets(wanted=NOTHING), sockets(wanted=wanted, buffer_bytes=16_000)
    for times in (1, 2):
        for _ in range(20):
            one.send(train([100] * 50, other.address))
        while other.receive():
            pass
        one.send(train([7], other.address))
        receive_datagrams(other, 1)  # the kernel tells with the next that arrives

        assert other.counters.receive_drops > 0
        assert other.counters.datagrams_received + other.counters.receive_drops == times * 1_001


@needs_gso
def test_where_it_is_switched_off_nothing_is_said_of_it(sockets: Sockets) -> None:
    one, other = sockets(), sockets(wanted=NOTHING, buffer_bytes=16_000)
    for _ in range(20):
        one.send(train([100] * 50, other.address, ecn=3))
    while other.receive():
        pass
    one.send(train([7], other.address))
    [(_, _, ecn)] = receive_datagrams(other, 1)

    assert (ecn, other.counters.marked, other.counters.receive_drops) == (0, 0, 0)
