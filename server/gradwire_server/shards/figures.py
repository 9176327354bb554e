"""Figures: the counters of a shard, their way to process 0, and the sums over all shards.

A shard sends its figures when process 0 asks. So a scrape sees the current state of all shards, and
nothing is sent without a scrape.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gradwire_protocol import Connection, Counters, Drop
from gradwire_udp import SocketCounters


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """The state of one connection; the names are those of `Connection`."""

    rtt: float | None = None
    bytes_held: int = 0


@dataclass(slots=True)
class Figures:
    """The counters of one process, or the sums over several."""

    counters: Counters = field(default_factory=Counters)
    sockets: SocketCounters = field(default_factory=SocketCounters)

    def add(self, other: "Figures") -> None:
        """Add the counters of another process."""
        for name, value in other.counters.flat().items():
            setattr(self.counters, name, getattr(self.counters, name) + value)
        for reason, value in other.counters.drops.items():
            self.counters.drops[reason] += value
        for counted in fields(SocketCounters):
            value = getattr(self.sockets, counted.name) + getattr(other.sockets, counted.name)
            setattr(self.sockets, counted.name, value)

    def set_to_sum(self, parts: Iterable["Figures"]) -> None:
        """Become the sum of others in place, so that references to the counters stay valid."""
        for name in self.counters.flat():
            setattr(self.counters, name, 0)
        self.counters.drops = dict.fromkeys(Drop, 0)
        for counted in fields(SocketCounters):
            setattr(self.sockets, counted.name, 0)
        for part in parts:
            self.add(part)


def pack_figures(figures: Figures, connections: dict[int, Connection]) -> tuple[Any, ...]:
    """Return figures, and those of connections by number, as values that a record can have."""
    return (
        figures.counters.flat(),
        {str(reason): value for reason, value in figures.counters.drops.items()},
        asdict(figures.sockets),
        [(number, each.rtt, each.bytes_held) for number, each in connections.items()],
    )


def parse_figures(plain: tuple[Any, ...]) -> tuple[Figures, dict[int, ConnectionFigures]]:
    """Return the figures of `pack_figures`, and those of connections by number."""
    counted, drops, sockets, connections = plain
    counters = Counters(**counted)
    counters.drops.update({Drop(reason): value for reason, value in drops.items()})
    return (
        Figures(counters, SocketCounters(**sockets)),
        {number: ConnectionFigures(*rest) for number, *rest in connections},
    )
