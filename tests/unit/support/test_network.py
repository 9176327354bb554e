"""The simulated network: what is handed over, when, in which pieces, and what is the same again."""

from dataclasses import dataclass, field
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Address, Endpoint
from gradwire_protocol.connection.train import ECN_CAPABLE, Train
from support.link import Link
from support.network import Host, SimulatedNetwork


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


def test_what_was_read_is_overwritten_by_the_next_read() -> None:
    """As by a driver: an endpoint that keeps a part of it has a bug that has to show."""
    ends = Ends("a", "b")

    ends.network.send("a", "b", b"first")
    ends.network.run_for(1)
    ends.network.send("a", "b", b"other")
    ends.network.run_for(1)

    assert bytes(ends.ends["b"].views[0]) == b"other"


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
