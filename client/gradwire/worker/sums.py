"""`Sum`: entries of the log as a worker takes them: one update of another one, or several as one.

The master sends several updates as one sum, the same one to all. So it has own updates of its
receiver, too, which are subtracted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.worker.update_log import OwnUpdate
from gradwire_codecs import Update, decode
from gradwire_codecs.replica.merging import merge
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.updates import Span


@dataclass(frozen=True, slots=True)
class Sum:
    """Entries of the log as one change."""

    stop: int
    """Position in the log of the last one."""
    bodies: Sequence[bytes]
    """Encoded updates without an element in common."""
    span: Span
    before: Mapping[int, int]
    """By rank in it, the last update before it."""
    own: Sequence[OwnUpdate] = ()
    """Our own updates in it, which our replica has already."""
    rank: int = -1
    """Ours."""
    accepted: int = 0
    """Sequence of our last update that the log has up to here."""

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

    @property
    def origin(self) -> int | None:
        """The rank of the only update in it; None where there are several."""
        return next(iter(self.span.after)) if self.span.updates == 1 else None

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
            rank: last - self.before[rank]
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
