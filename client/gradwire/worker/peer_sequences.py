"""`PeerSequences`: how far the updates of each rank have come, one by one or in sums.

A worker that does not keep up is sent a sum of updates by the master. The sum begins exactly where
the worker has got to, because everything before it was delivered first. It counts when all its
parts are here. So the versions of a worker have no gap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwire.worker.update_log import PeerUpdateLog
from gradwire_protocol import InOrder, InvalidMessageError
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.updates import PART_ELEMENTS, Conflated, Span


@dataclass(frozen=True, slots=True)
class Sum:
    """Updates of peers that the master has conflated."""

    bodies: tuple[bytes, ...]
    """Encoded updates of different ranges of elements, to be applied together."""
    versions: dict[int, int]
    """By rank: the sequence of the last update in it."""
    updates: int
    """How many updates are in it."""
    clocks: dict[int, int] = field(default_factory=dict)
    """By rank: how many of its steps these and earlier updates contain, if it told that."""
    closes: Mapping[int, int] = field(default_factory=dict)
    """In rounds, by rank: the last contributed update that is in the replica with the sum."""


class SumAssembly:
    """Collects the parts of a sum; one sum is on its way at a time.

    Parts lie on a grid, so they take no more memory than a replica does.

    Parameters
    ----------
    elements : int
        Length of the replica.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self._bodies: dict[int, bytes] = {}
        self._span: Span | None = None

    def add_part(self, part: Conflated) -> None:
        """Take a part; raise `InvalidMessageError` if it does not belong to this sum."""
        start = part.start
        if start >= self.elements or start % PART_ELEMENTS or start in self._bodies:
            raise InvalidMessageError(
                f"Conflated: a part from element {start} on, of {self.elements}"
            )
        self._bodies[start] = part.body
        if part.span is not None:
            if self._span is not None:
                raise InvalidMessageError("Conflated: a second last part")
            self._span = part.span
        if self._span is not None and len(self._bodies) > self._span.parts:
            raise InvalidMessageError(f"Conflated: more than {self._span.parts} parts")

    @property
    def span(self) -> Span | None:
        """What the sum contains; None before all of it is here."""
        if self._span is None or len(self._bodies) < self._span.parts:
            return None
        return self._span

    def take_sum(self) -> Sum:
        """Return the sum that is here, and wait for the next one."""
        span = self.span
        assert span is not None
        bodies = tuple(body for body in self._bodies.values() if body)
        self._bodies, self._span = {}, None
        return Sum(bodies, dict(span.after), span.updates, dict(span.clocks), span.closes)


class PeerSequences:
    """The updates of other workers that have come."""

    def __init__(self) -> None:
        self.log = PeerUpdateLog()
        """Those that some worker lacks."""
        self._versions: Mapping[int, int] = {}
        """What our replica contained at first."""
        self._arriving: dict[int, InOrder[UpdateReceived]] = {}
        self._before: tuple[Mapping[int, int], dict[int, InOrder[UpdateReceived]]] | None = None
        """Versions and updates of our replica, while another one is on its way to its place."""

    def reached(self, rank: int) -> int:
        """Return up to which sequence the updates of a rank are here."""
        arriving = self._arriving.get(rank)
        return self._versions.get(rank, 0) if arriving is None else arriving.expected - 1

    @property
    def contents(self) -> dict[int, int]:
        """By rank: up to which sequence its updates are here."""
        return {rank: self.reached(rank) for rank in self._versions.keys() | self._arriving.keys()}

    def begin_with(self, versions: Mapping[int, int]) -> None:
        """Begin with a replica that contains these versions."""
        self._versions, self._arriving = versions, {}

    def change_to(self, versions: Mapping[int, int]) -> None:
        """Take updates after these versions, for a replica that will take the place of ours."""
        self._before = self._versions, self._arriving
        self.begin_with(versions)

    def settle(self) -> None:
        """Note that the replica that was on its way is here."""
        self._before = None

    def start_over(self) -> None:
        """Go back to what our replica contains: the connection is lost.

        Updates that wait for their predecessors come again, and their credit was that connection's.
        """
        if self._before is not None:
            (self._versions, self._arriving), self._before = self._before, None
        self._arriving = {rank: InOrder(each.expected) for rank, each in self._arriving.items()}

    def accept_update(self, received: UpdateReceived) -> list[UpdateReceived] | None:
        """Take an update; return those next in order, or None if it came before."""
        arriving = self._of(received.rank)
        if arriving.is_duplicate(received.update.sequence):
            return None
        return self._keep(arriving.insert(received.update.sequence, received))

    def pass_over(self, rank: int, sequence: int) -> list[UpdateReceived]:
        """Note that updates up to this one came in a sum; return those next in order."""
        return self._keep(self._of(rank).skip_to(sequence + 1))

    def check_follows(self, span: Span, rank: int) -> None:
        """Refuse a sum that does not begin where the worker of this rank has got to.

        Raises `InvalidMessageError` if an update would be missing, or be there twice.
        """
        if span.before.keys() != span.after.keys() or rank in span.after:
            raise InvalidMessageError(
                "Conflated: it contains our updates, or does not say where it begins"
            )
        for other, before in span.before.items():
            reached, after = self.reached(other), span.after[other]
            if before != reached or after <= before:
                raise InvalidMessageError(
                    f"Conflated: updates {before + 1} to {after} of rank {other}; "
                    f"{reached} are here"
                )
            arriving = self._arriving.get(other)
            waiting = None if arriving is None else arriving.lowest_waiting
            if waiting is not None and waiting <= after:
                raise InvalidMessageError(
                    f"Conflated: update {waiting} of rank {other}, which came by itself"
                )

    def _of(self, rank: int) -> InOrder[UpdateReceived]:
        if rank not in self._arriving:
            self._arriving[rank] = InOrder(self._versions.get(rank, 0) + 1)
        return self._arriving[rank]

    def _keep(self, ready: list[UpdateReceived]) -> list[UpdateReceived]:
        for each in ready:
            self.log.append(each.rank, each.update)
            self.note_closed(each.update.closes)
        return ready

    def note_closed(self, closes: Mapping[int, int]) -> None:
        """Note which contributions to rounds are in what has come."""
        if closes:
            versions = dict(self._versions)
            raise_to(versions, closes)
            self._versions = versions
