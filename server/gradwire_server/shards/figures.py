"""Figures: what a shard counts, on its way to process 0, and the sums over all of them.

They travel when somebody asks. So a scrape sees all shards as they are at that moment, and nothing
is sent while nobody looks.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from gradwire_protocol import Connection, Counters, Drop
from gradwire_udp import SocketCounters


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """One connection at one moment; the names are those of `Connection`."""

    rtt: float | None = None
    bytes_held: int = 0
    bytes_in_flight: int = 0


NO_FIGURES: Final = ConnectionFigures()


@dataclass(slots=True)
class Figures:
    """What was counted in one process, or in several."""

    counters: Counters = field(default_factory=Counters)
    sockets: SocketCounters = field(default_factory=SocketCounters)

    def add(self, other: "Figures") -> None:
        """Add what was counted elsewhere."""
        for name, value in other.counters.flat().items():
            setattr(self.counters, name, getattr(self.counters, name) + value)
        for reason, value in other.counters.drops.items():
            self.counters.drops[reason] += value
        for counted in fields(SocketCounters):
            value = getattr(self.sockets, counted.name) + getattr(other.sockets, counted.name)
            setattr(self.sockets, counted.name, value)

    def set_to_sum(self, parts: Iterable["Figures"]) -> None:
        """Become the sum of others, in place: who holds the counters sees it."""
        for name in self.counters.flat():
            setattr(self.counters, name, 0)
        self.counters.drops = dict.fromkeys(Drop, 0)
        for counted in fields(SocketCounters):
            setattr(self.sockets, counted.name, 0)
        for part in parts:
            self.add(part)


def pack_figures(figures: Figures, connections: dict[int, Connection]) -> tuple[Any, ...]:
    """Return what counts as a record can hold it."""
    return (
        figures.counters.flat(),
        {str(reason): value for reason, value in figures.counters.drops.items()},
        asdict(figures.sockets),
        [(n, c.rtt, c.bytes_held, c.bytes_in_flight) for n, c in connections.items()],
    )


def parse_figures(plain: tuple[Any, ...]) -> tuple[Figures, dict[int, ConnectionFigures]]:
    """Return what `pack_figures` has packed; connections by their numbers."""
    counted, drops, sockets, connections = plain
    counters = Counters(**counted)
    counters.drops.update({Drop(reason): value for reason, value in drops.items()})
    return (
        Figures(counters, SocketCounters(**sockets)),
        {number: ConnectionFigures(*rest) for number, *rest in connections},
    )
