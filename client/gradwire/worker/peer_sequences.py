"""`PeerSequences`: how far the updates of each rank have come, one by one or in sums.

A worker takes a sum when it has all that the master had accepted before the first update in it. So
the versions of a worker have no gap, and a worker that has a sum has all that is in earlier ones.
"""

from collections.abc import Mapping

from gradwire.worker.update_log import PeerUpdateLog
from gradwire_protocol import InOrder, InvalidMessageError
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.updates import Span


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

    def follows(self, span: Span, rank: int) -> bool:
        """Return whether all is here that comes before a sum, for the worker of this rank.

        Raises `InvalidMessageError` if an update would be there twice.
        """
        for other, before in span.before.items():
            reached = self.reached(other)
            if other == rank:
                continue
            if reached < before:
                return False
            after = span.after.get(other)
            if after is None:
                continue
            arriving = self._arriving.get(other)
            waiting = None if arriving is None else arriving.lowest_waiting
            if before != reached or after <= before or (waiting is not None and waiting <= after):
                raise InvalidMessageError(
                    f"Conflated: updates {before + 1} to {after} of rank {other}; "
                    f"{reached} are here" + (f", and {waiting}" if waiting is not None else "")
                )
        if not span.after.keys() <= span.before.keys():
            raise InvalidMessageError("Conflated: it does not say where it begins")
        return True

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
