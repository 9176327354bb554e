"""What is sent leaves once, whole and in order, whatever the kernel makes of it."""

import errno
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Address
from gradwire_protocol.connection.train import Train
from gradwire_protocol.limits import TRAIN_BYTES_MAX, TRAIN_PACKETS_MAX
from gradwire_udp import DatagramSocket, Features, SocketCounters, open_socket
from gradwire_udp.udp.datagram_socket import CONTROLS_MAX
from support.datagrams import HERE, NOTHING, needs_gso, receive_datagrams, train
from support.fickle_socket import FickleSocket
from support.memory import peak_of


class Path(ExitStack):
    """A sender whose calls fail as they are told to, and a receiver."""

    def __init__(self, *failures: OSError | None, wanted: Features = HERE) -> None:
        super().__init__()
        self.socket = self.enter_context(FickleSocket.on_loopback(to_send=failures))
        self.sender = DatagramSocket(self.socket, SocketCounters(), wanted=wanted)
        sock = self.enter_context(open_socket(("127.0.0.1", 0)))
        self.receiver = DatagramSocket(sock, SocketCounters())

    @property
    def address(self) -> Address:
        return self.receiver.address

    @property
    def counters(self) -> SocketCounters:
        return self.sender.counters

    def received(self, n: int) -> list[bytes]:
        """Return the payloads of so many datagrams, which is all there are."""
        payloads = [payload for payload, _, _ in receive_datagrams(self.receiver, n)]
        assert self.receiver.receive() is None
        return payloads


@pytest.fixture
def path() -> Iterator[Path]:
    with Path() as made:
        yield made


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=10).map(
        lambda sizes: [max(sizes)] * (len(sizes) - 1) + [sizes[-1]]
    ),
    pieces=st.integers(1, 30),
    gso=st.booleans(),
)
def test_a_train_may_come_from_any_number_of_buffers(
    sizes: list[int], pieces: int, gso: bool
) -> None:
    with Path(wanted=Features(gso=gso)) as path:
        there = train(sizes, path.address, pieces=pieces)

        assert path.sender.send(there)

        assert path.received(len(sizes)) == there.datagrams()


def test_a_train_larger_than_the_kernel_takes_is_our_own_fault(path: Path) -> None:
    for sizes in ([1] * (TRAIN_PACKETS_MAX + 1), [1_400] * (TRAIN_BYTES_MAX // 1_400 + 1)):
        with pytest.raises(AssertionError):
            path.sender.send(train(sizes, path.address))


def test_the_largest_trains_are_taken(path: Path) -> None:
    for sizes in ([1] * TRAIN_PACKETS_MAX, [1_000] * 64, [32_000] * 2, [64_000]):
        there = train(sizes, path.address)

        assert path.sender.send(there)

        assert path.received(len(sizes)) == there.datagrams()


def test_many_sizes_make_no_heap_of_control_messages(path: Path) -> None:
    def send() -> None:
        for segment in range(1, 2_000):
            path.sender.send(train([segment] * 2, path.address, ecn=2))

    assert peak_of(send) < 1_000 * CONTROLS_MAX


# A kernel that cuts no trains after all.

CUTS_NONE = [pytest.param(e, id=errno.errorcode[e]) for e in (errno.EIO, errno.EINVAL)]


@needs_gso
@pytest.mark.parametrize("number", CUTS_NONE)
def test_where_the_kernel_cuts_no_trains_they_leave_datagram_by_datagram(number: int) -> None:
    with Path(None, OSError(number, "no checksums")) as path:
        trains = [train([100] * 5 + [7], path.address, fill=10 * i) for i in range(3)]

        assert all(path.sender.send(one) for one in trains)

        assert path.received(18) == [d for one in trains for d in one.datagrams()]
        assert path.sender.features == replace(HERE, gso=False)
        assert path.counters.gso_fallbacks == 1
        assert (path.counters.trains_sent, path.counters.datagrams_sent) == (13, 18)
        assert path.counters.send_errors == 0


@needs_gso
@pytest.mark.parametrize("number", CUTS_NONE)
def test_where_the_kernel_takes_no_single_datagram_either_it_was_not_for_the_cutting(
    number: int,
) -> None:
    """An address with port 0 is invalid: one such peer must not slow down all others."""
    with Path(*[OSError(number, "")] * 4) as path:
        there = train([100] * 3, path.address)

        assert path.sender.send(there)
        assert path.counters.send_errors == 3
        assert path.sender.send(there)

        assert path.received(3) == there.datagrams()
        assert path.sender.features == HERE
        assert path.counters.gso_fallbacks == 1


@needs_gso
def test_a_single_datagram_that_is_refused_says_nothing_about_cutting() -> None:
    with Path(OSError(errno.EIO, "")) as path:
        assert path.sender.send(train([100], path.address))

        assert path.sender.features == HERE
        assert path.counters.send_errors == 1


# A kernel that takes no more for now.


@given(
    count=st.integers(1, 8),
    passes=st.lists(st.booleans(), max_size=20),
    pieces=st.integers(1, 4),
    gso_fails=st.booleans(),
)
def test_a_train_cut_short_goes_on_where_it_was(
    count: int, passes: list[bool], pieces: int, gso_fails: bool
) -> None:
    """Whether we have cut it from the start, or after the kernel would not."""
    failures: list[OSError | None] = [None if passed else BlockingIOError() for passed in passes]
    if gso_fails:
        failures.insert(0, OSError(errno.EIO, ""))
    with Path(*failures, wanted=replace(HERE, gso=gso_fails)) as path:
        there = train([50] * (count + 1), path.address, pieces=pieces)

        attempts = 1
        while not path.sender.send(there):
            attempts += 1

        assert path.received(count + 1) == there.datagrams()
        assert attempts <= passes.count(False) + 1
        assert path.counters.send_errors == 0
        assert not path.sender.features.gso


def test_another_train_in_place_of_one_cut_short_drops_the_rest_of_it() -> None:
    with Path(None, BlockingIOError(), wanted=NOTHING) as path:
        first, second = (train([50] * 3, path.address, fill=fill) for fill in (0, 100))

        assert not path.sender.send(first)
        assert path.sender.send(second)

        assert path.received(4) == first.datagrams()[:1] + second.datagrams()


# A kernel that refuses.


@pytest.mark.parametrize("wanted", [HERE, NOTHING], ids=["GSO", "no GSO"])
@pytest.mark.parametrize("sizes", [[100], [100] * 3])
def test_what_is_refused_is_counted_and_gone(sizes: list[int], wanted: Features) -> None:
    refusals = 1 if wanted.gso else len(sizes)
    no_route = [OSError(errno.ENETUNREACH, "no route") for _ in range(refusals)]
    with Path(*no_route, wanted=wanted) as path:
        refused, there = (train(sizes, path.address, fill=fill) for fill in (0, 100))

        assert path.sender.send(refused)
        assert path.sender.send(there)

        assert path.received(len(sizes)) == there.datagrams()
        assert path.counters == SocketCounters(
            trains_sent=path.counters.trains_sent,
            datagrams_sent=len(sizes),
            bytes_sent=100 * len(sizes),
            send_errors=len(sizes),
        )


def test_what_is_too_large_for_the_link_is_counted_apart() -> None:
    with Path(OSError(errno.EMSGSIZE, "too long")) as path:
        assert path.sender.send(train([9_000], path.address))

        assert (path.counters.oversize, path.counters.send_errors) == (1, 0)


def test_a_datagram_refused_does_not_take_the_others_of_its_train_along() -> None:
    with Path(None, OSError(errno.EMSGSIZE, ""), OSError(errno.EPERM, ""), wanted=NOTHING) as path:
        there = train([50] * 4, path.address)

        assert path.sender.send(there)

        assert path.received(2) == [there.datagrams()[0], there.datagrams()[3]]
        assert (path.counters.oversize, path.counters.send_errors) == (1, 1)


def test_a_train_is_only_read(path: Path) -> None:
    """Its buffers go to others next."""
    payload = bytes(range(200))
    there = Train([memoryview(payload)], 50, 200, path.address)

    path.sender.send(there)

    assert b"".join(path.received(4)) == payload
