"""Sums of updates that a worker is sent, until it can take them.

The master sends several updates as one sum, the same one to all. A sum can be taken when all its
parts are here, and everything that was sent before it. Several may be on their way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from gradwire.worker.update_log import OwnUpdate
from gradwire_codecs import Update, decode
from gradwire_codecs.replica.merging import merge
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.link import PartReceived
from gradwire_protocol.messages.updates import WAITING_SUMS_BYTES_MAX, Span

ELEMENT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Sum:
    """Updates of several workers as one."""

    bodies: Sequence[bytes]
    """Encoded updates without an element in common."""
    span: Span
    own: Sequence[OwnUpdate] = ()
    """Our own updates in it, which our replica has already."""
    rank: int = -1
    """Ours."""

    @property
    def nbytes(self) -> int:
        """Bytes of its bodies, and of the own ones to subtract."""
        return sum(map(len, self.bodies)) + sum(len(each.body) for each in self.own)

    @property
    def versions(self) -> dict[int, int]:
        """By rank but ours: the last update in it; in rounds, of all contributions as well."""
        others = {rank: last for rank, last in self.span.after.items() if rank != self.rank}
        return {**others, **self.span.closes}

    @property
    def updates(self) -> int:
        """How many updates of others are in it."""
        return self.span.updates - len(self.own)

    def staleness(self, versions: Mapping[int, int]) -> dict[int, tuple[float, int]]:
        """Return by rank but ours: the staleness of its updates, and how many these are.

        The sum says what the last update of a rank was based on. Of the others' updates, those
        before the last one of `n` came before it but for half of an n-th, in the mean.

        Parameters
        ----------
        versions : mapping
            What our replica has without the sum, our own updates included.
        """
        counts = {
            rank: last - self.span.before[rank]
            for rank, last in self.span.after.items()
            if rank != self.rank
        }
        total = sum(counts.values())
        return {
            rank: (
                max(
                    count_updates(versions, without=rank)
                    + (total - count) * (1 - 0.5 / count)
                    - self.span.based_on.get(rank, 0),
                    0.0,
                ),
                count,
            )
            for rank, count in counts.items()
        }

    def changes(self, elements: int) -> list[Update]:
        """Return what it changes in a replica that has our own updates: as a rule one update.

        Raises
        ------
        MalformedUpdateError
            If a body is no valid update of a vector of so many elements.
        """
        parts = [decode(body, elements) for body in self.bodies if body]
        for each in self.own:
            own = decode(each.body, elements)
            parts.append(Update(own.start, own.stop, own.multiple, own.index, -own.count))
        total = merge(parts, elements) if len(parts) > 1 else None
        return parts if total is None else [total]


class SumAssembly:
    """Collects the parts of sums, and keeps those that wait.

    Parameters
    ----------
    elements : int
        Length of the replica.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self._bodies: dict[int, list[bytes]] = {}
        """By position."""
        self._spans: dict[int, Span] = {}
        self._numbers: dict[int, int] = {}
        """By position, the highest number of a part."""
        self._bytes = 0

    def add_part(self, received: PartReceived) -> None:
        """Take a part; raise `InvalidMessageError` if it does not fit what is here."""
        part = received.part
        bodies = self._bodies.setdefault(part.position, [])
        bodies.append(part.body)
        self._bytes += len(part.body)
        number = self._numbers.get(part.position, 0)
        self._numbers[part.position] = max(number, received.number)
        if part.span is not None:
            if part.position in self._spans:
                raise InvalidMessageError("Conflated: a second last part")
            self._spans[part.position] = part.span
        span = self._spans.get(part.position)
        if span is not None and len(bodies) > span.parts:
            raise InvalidMessageError(f"Conflated: more than {span.parts} parts")
        most = 2 * ELEMENT_BYTES * self.elements + 2 * WAITING_SUMS_BYTES_MAX
        if self._bytes > most:
            raise InvalidMessageError(
                f"Conflated: {self._bytes} bytes of sums wait; the limit is {most}"
            )

    @property
    def complete(self) -> list[tuple[int, Span]]:
        """The sums of which all parts are here, in order: their positions, and what they have."""
        found = [
            (position, span)
            for position, span in self._spans.items()
            if len(self._bodies[position]) == span.parts
        ]
        return sorted(found, key=itemgetter(0))

    def take(self, position: int) -> tuple[list[bytes], int]:
        """Return the bodies of a sum, and the highest number of its parts; forget it."""
        del self._spans[position]
        bodies = self._bodies.pop(position)
        self._bytes -= sum(map(len, bodies))
        return [body for body in bodies if body], self._numbers.pop(position)
