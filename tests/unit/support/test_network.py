"""The simulated network: what is handed over, when, in which pieces, and what is the same again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Address, Endpoint
from gradwire_protocol.connection.train import ECN_CAPABLE, ECN_MARKED, ECN_NOT, Train
from support.link import IP_UDP_HEADER_BYTES, Channel, Link
from support.network import HELD_MAX, Host, SimulatedNetwork


@dataclass(frozen=True, slots=True)
class Read:
    """What an endpoint was handed in one piece."""

    at: float
    source: Address
    data: bytes
    segment: int
    ecn: int

    @property
    def sizes(self) -> list[int]:
        """The size of every datagram in it."""
        whole, rest = divmod(len(self.data), self.segment)
        return [self.segment] * whole + [rest] * bool(rest)


@dataclass(slots=True, eq=False)
class Plain:
    """An end that sends the trains it is told to, and writes down what it reads.

    It plays the application on top of it, too.
    """

    trains: list[Train] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    views: list[memoryview] = field(default_factory=list)

    def next_event(self) -> None:
        """Have nothing to tell."""

    def next_train(self, now: float) -> Train | None:
        """Send what there is."""
        return self.trains.pop(0) if self.trains else None

    def receive(
        self, view: memoryview, segment: int, address: Address, ecn: int, now: float
    ) -> None:
        """Write it down."""
        assert not view.readonly
        self.views.append(view)
        self.reads.append(Read(now, address, bytes(view), segment, ecn))

    def next_timer(self) -> None:
        """Have no timers."""

    def handle_timer(self, now: float) -> None:
        """Have nothing to do by itself."""


def train(to: str, *sizes: int, ecn: int = ECN_CAPABLE) -> Train:
    """Return a train of datagrams that are all different."""
    data = b"".join(bytes([i]) * size for i, size in enumerate(sizes))
    return Train([memoryview(data)], sizes[0], len(data), to, ecn)


class Ends:
    """A network with a few plain ends on it."""

    def __init__(self, *names: str, **options: object) -> None:
        self.network = SimulatedNetwork(1, **options)  # type: ignore[arg-type]
        self.ends = {name: Plain() for name in names}
        self.hosts: dict[str, Host] = {}
        for name, end in self.ends.items():
            self.hosts[name] = self.network.add(name, cast("Endpoint", end), end)  # type: ignore[arg-type]

    def send(self, source: str, *trains: Train) -> None:
        """Let an end send trains now."""
        self.ends[source].trains += trains
        self.network.turn(self.hosts[source])

    def reads(self, name: str, seconds: float = 1.0) -> list[Read]:
        """Let time pass, and return what an end has read since it was asked last."""
        self.network.run_for(seconds)
        reads, self.ends[name].reads = self.ends[name].reads, []
        return reads


def test_a_train_that_stays_together_is_one_read() -> None:
    ends = Ends("a", "b")

    sent = train("b", 1400, 1400, 1400, 100)
    ends.send("a", sent)
    [read] = ends.reads("b")

    assert read == Read(1000.01, "a", bytes(sent.buffers[0]), 1400, ECN_CAPABLE)
    assert ends.network.counts == {"sent": 4, "bytes": 4300}


def test_without_gro_every_datagram_is_handed_over_alone() -> None:
    turns = 0

    def count(_: object) -> None:
        nonlocal turns
        turns += 1

    ends = Ends("a", "b", gro=False)
    ends.network.after_turn = count

    sent = train("b", 1400, 1400, 100)
    ends.send("a", sent)
    reads = ends.reads("b")

    assert [read.data for read in reads] == sent.datagrams()
    assert [read.segment for read in reads] == [1400, 1400, 100]
    assert turns == 1 + 3


def test_a_bottleneck_pulls_a_train_apart_and_a_network_card_puts_it_together() -> None:
    wire = Link(rate=(1400 + IP_UDP_HEADER_BYTES) * 8 * 1000)
    apart, together = Ends("a", "b", link=wire), Ends("a", "b", link=wire, gro_seconds=0.0035)

    for ends in (apart, together):
        ends.send("a", train("b", *[1400] * 10))
    reads, joined = apart.reads("b"), together.reads("b")

    assert [read.sizes for read in reads] == [[1400]] * 10
    assert [read.at for read in reads] == pytest.approx([1000.011 + i / 1000 for i in range(10)])
    # The first waits for those that come within 3.5 ms of it, and so does the first after these.
    assert [len(read.sizes) for read in joined] == [4, 4, 2]
    assert [read.at for read in joined] == pytest.approx([1000.0145, 1000.0185, 1000.0225])
    assert b"".join(r.data for r in joined) == b"".join(r.data for r in reads)


@pytest.mark.parametrize(
    ("trains", "reads"),
    [
        ([[1400, 1400], [1400]], [[1400, 1400, 1400]]),
        ([[1400, 100], [100]], [[1400, 100], [100]]),
        ([[100], [1400, 1400]], [[100], [1400, 1400]]),
        ([[1000] * 100], [[1000] * 64, [1000] * 36]),
        ([[1400] * 44, [1400] * 3], [[1400] * 46, [1400]]),
        ([[8900] * 7, [8900]], [[8900] * 7, [8900]]),
    ],
)
def test_a_read_is_of_one_size_but_for_a_shorter_end_and_is_bounded(
    trains: Sequence[Sequence[int]], reads: Sequence[Sequence[int]]
) -> None:
    ends = Ends("a", "b")

    ends.send("a", *[train("b", *sizes) for sizes in trains])

    assert [read.sizes for read in ends.reads("b")] == reads


def test_an_empty_datagram_is_read_alone() -> None:
    ends = Ends("a", "b")

    for datagram in (b"before", b"", b"after"):
        ends.network.send("a", "b", datagram)

    assert [read.data for read in ends.reads("b")] == [b"before", b"", b"after"]


def test_a_read_is_from_one_source_with_one_mark() -> None:
    ends = Ends("a", "b", "c")

    for _ in range(2):
        ends.send("a", train("c", 700, 700))
        ends.send("b", train("c", 700, ecn=ECN_NOT), train("c", 700))
    reads = ends.reads("c")

    assert [(read.source, len(read.sizes), read.ecn) for read in reads] == [
        ("a", 4, ECN_CAPABLE),
        ("b", 1, ECN_NOT), ("b", 1, ECN_CAPABLE), ("b", 1, ECN_NOT), ("b", 1, ECN_CAPABLE),
    ]  # fmt: skip


def test_what_was_read_is_overwritten_by_the_next_read() -> None:
    """As by a driver: an endpoint that keeps a part of it has a bug that has to show."""
    ends = Ends("a", "b")

    ends.network.send("a", "b", b"first")
    ends.network.run_for(1)
    ends.network.send("a", "b", b"other")
    ends.network.run_for(1)

    assert bytes(ends.ends["b"].views[0]) == b"other"


def test_only_who_can_carry_a_mark_gets_one() -> None:
    ends = Ends("a", "b", link=Link(rate=1e6, mark_bytes=0))

    ends.send("a", train("b", 100, 100), train("b", 100, ecn=ECN_NOT))

    assert [read.ecn for read in ends.reads("b")] == [ECN_CAPABLE, ECN_MARKED, ECN_NOT]
    assert ends.network.counts["marked"] == 1


def test_directions_can_differ() -> None:
    ends = Ends("a", "b", "c", link=Link(delay=0.03))
    ends.network.set_link("a", "b", Link(delay=0.001))

    for source, destination in ("ab", "ba", "ac"):
        ends.network.send(source, destination, b"x")
    ends.network.link = Link(delay=0.05)
    for source, destination in ("ab", "ba", "ac"):
        ends.network.send(source, destination, b"y")

    delays = {
        name: [(r.data, round(r.at - 1000, 6)) for r in ends.reads(name, 0.1)] for name in "abc"
    }
    assert delays == {
        "a": [(b"x", 0.03), (b"y", 0.05)],
        "b": [(b"xy", 0.001)],
        "c": [(b"x", 0.03), (b"y", 0.05)],
    }


def test_pairs_have_queues_of_their_own_unless_they_share_one() -> None:
    narrow = Link(rate=8 * (100 + IP_UDP_HEADER_BYTES) * 100, delay=0.0)
    apart, shared = Ends("a", "b", "c", link=narrow), Ends("a", "b", "c")
    bottleneck = Channel(narrow)
    for source in "ab":
        shared.network.set_link(source, "c", bottleneck)

    for ends in (apart, shared):
        for source in "ab":
            ends.send(source, train("c", 100, 100))

    assert [r.at - 1000 for r in apart.reads("c")] == pytest.approx([0.01, 0.01, 0.02, 0.02])
    assert [r.at - 1000 for r in shared.reads("c")] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert bottleneck.offered == 4


def test_who_moves_takes_its_links_along_but_not_what_is_under_way() -> None:
    ends = Ends("a", "b")
    channel = ends.network.set_link("a", "b", Link(delay=0.001))

    ends.network.send("a", "b", b"too late")
    ends.network.move(ends.hosts["b"], "elsewhere")
    ends.network.send("a", "elsewhere", b"in time")

    assert [(r.data, r.at) for r in ends.reads("b")] == [(b"in time", 1000.001)]
    assert ends.network.channel("a", "elsewhere") is channel


def test_the_dead_neither_read_nor_send() -> None:
    ends = Ends("a", "b", gro_seconds=0.001)

    ends.network.send("a", "b", b"x")
    ends.network.at(1000.0105, lambda: ends.network.kill(ends.hosts["b"]))
    ends.network.run_for(0.5)
    ends.send("b", train("a", 10))

    assert ends.reads("b") == []
    assert ends.reads("a") == []


def test_every_datagram_can_be_stopped_on_its_way() -> None:
    ends = Ends("a", "b")
    ends.network.on_datagram = lambda source, destination, datagram: (
        (source, destination, datagram[:1]) != ("a", "b", b"\1")
    )

    ends.send("a", train("b", 10, 10, 10))

    assert [read.data for read in ends.reads("b")] == [bytes(10) + b"\2" * 10]
    assert ends.network.counts["lost"] == 1


def test_damage_and_copies_are_counted() -> None:
    ends = Ends("a", "b", link=Link(corruption=1.0, duplication=1.0), gro=False)

    ends.send("a", train("b", *[50] * 20))
    reads = ends.reads("b")

    assert len(reads) == 40
    assert all(read.data != bytes([i // 2]) * 50 for i, read in enumerate(reads))
    counts = ends.network.counts
    assert (counts["repeated"], counts["damaged"], counts["lost"]) == (20, 40, 0)


@given(st.integers(0, 100), st.booleans(), st.sampled_from([0.0, 0.002]))
def test_one_seed_gives_one_history(seed: int, gro: bool, gro_seconds: float) -> None:
    def history(seed: int) -> str:
        ends = Ends("a", "b", gro=gro, gro_seconds=gro_seconds)
        ends.network.link = Link(
            jitter=0.01, loss=0.1, duplication=0.1, corruption=0.1, rate=1e7, reordering=0.1
        )
        ends.network.random.seed(seed)
        for i in range(10):
            ends.send("a", train("b", *[100] * i, 50))
            ends.network.run_for(0.003)
        ends.network.run_for(1.0)
        return ends.network.trace

    assert history(seed) == history(seed)
    assert history(seed) != history(seed + 1)


# Hosts with faults.


def test_a_host_that_sleeps_reads_when_it_wakes_up_what_its_socket_has_kept() -> None:
    ends = Ends("a", "b")

    ends.network.suspend(ends.hosts["b"], 0.5)
    ends.send("a", *(train("b", 100) for _ in range(HELD_MAX + 5)))
    ends.send("b", train("a", 100))
    before, asleep = ends.reads("b", 0.4), ends.reads("a", 0.0)
    after = ends.reads("b")

    assert before == asleep == []
    assert sum(len(read.sizes) for read in after) == HELD_MAX
    assert {read.at for read in after} == {1000.5}
    assert ends.network.counts["lost"] == 5
    assert len(ends.reads("a")) == 1


def test_who_has_slept_without_mail_goes_on_where_it_was() -> None:
    ends = Ends("a", "b")

    ends.network.suspend(ends.hosts["a"], 0.5)
    ends.send("a", train("b", 100))

    [read] = ends.reads("b")
    assert read.at == 1000.51


def test_a_clock_that_is_ahead_is_that_of_its_host_alone() -> None:
    ends = Ends("a", "b")

    ends.network.jump_ahead(ends.hosts["b"], 7.0)
    ends.send("a", train("b", 100))
    ends.send("b", train("a", 100))

    assert [read.at for read in ends.reads("b")] == [1007.01]
    assert [read.at for read in ends.reads("a")] == [1000.01]


@given(seconds=st.floats(1e-6, 1e6))
def test_a_timer_of_a_clock_that_is_ahead_comes_once_and_not_early(seconds: float) -> None:
    ends = Ends("a")
    host = ends.hosts["a"]
    due: list[float] = [1000.0 + seconds + 0.3]
    came: list[float] = []

    class Timers:
        def handle_event(self, *event: object) -> None:
            raise AssertionError("nothing happens")

        def next_timer(self) -> float | None:
            return due[0] if due else None

        def handle_timer(self, now: float) -> None:
            came.append(now)
            if due and now >= due[0]:
                due.clear()

    host.application = Timers()
    ends.network.jump_ahead(host, seconds)
    expected = due[0]
    ends.network.run_for(1.0)

    assert len(came) == 1
    assert came[0] >= expected


def test_a_slow_host_does_everything_late() -> None:
    ends = Ends("a", "b")

    ends.hosts["b"].slowness = 0.2
    for _ in range(20):
        ends.send("a", train("b", 100))
        ends.network.run_for(1.0)

    late = [read.at % 1.0 - 0.01 for read in ends.reads("b")]
    assert len(late) == 20
    assert all(0.0 < each <= 0.2 for each in late)
    assert len(set(late)) == 20
