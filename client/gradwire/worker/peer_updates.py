"""`PeerUpdates`: updates of others, on their way from the connection to the training thread.

Updates overtake each other, the WELCOME and the sums that replace some of them. They are handed on
in the order of their sequence, and only then is their credit released: so credit bounds how many
wait.
"""

from collections.abc import Mapping, Sequence

from gradwire.worker.membership import Membership
from gradwire.worker.own_updates import OwnUpdates
from gradwire.worker.peer_sequences import PeerSequences
from gradwire.worker.sums import Sum, SumAssembly
from gradwire_protocol import Connection
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.kinds import CONFLATED_STREAM
from gradwire_protocol.messages.link import UpdateReceived


class PeerUpdates:
    """What others have sent, and how far it has come."""

    def __init__(self, elements: int, membership: Membership) -> None:
        self.origins = PeerSequences()
        """How far the updates of each rank have come."""
        self.early: list[UpdateReceived] = []
        """Those that came before the WELCOME, which says with which sequence to begin. Their credit
        is not released, so the master's credit bounds how many they are."""
        self._elements = elements
        self._membership = membership
        self.sums = SumAssembly(elements)
        self._welcomed: Mapping[int, int] = {}
        """What the master had when it let us in, or back in; empty when all of it is here."""

    def note_welcome(self, versions: Mapping[int, int], rank: int) -> None:
        """Note what the master had when it let the worker of this rank in, or back in."""
        self._welcomed = {other: last for other, last in versions.items() if other != rank}

    @property
    def was_up_to_date(self) -> bool:
        """Whether all of that was here when `is_up_to_date` was last asked."""
        return not self._welcomed

    @property
    def is_up_to_date(self) -> bool:
        """Whether all is here that the master had when it let us in, or back in."""
        if self._welcomed and covers(self.origins.contents, self._welcomed):
            self._welcomed = {}
        return not self._welcomed

    def resize(self, elements: int) -> None:
        """Note how many elements the replica has; before the WELCOME it has at most so many."""
        self._elements = self.sums.elements = elements

    def start_over(self) -> None:
        """Forget what belonged to the lost connection."""
        self.early.clear()
        self.sums = SumAssembly(self._elements)
        self.origins.start_over()

    def accept_update(self, received: UpdateReceived, connection: Connection) -> bool:
        """Take an update, and hand on those next in order; return whether it was new."""
        ready = self.origins.accept_update(received)
        if ready is None:
            connection.release(received.charge)
            return False
        self._hand_on(ready, connection)
        return True

    def take_sums(self, rank: int, own: OwnUpdates, connection: Connection) -> bool:
        """Hand on the sums that can be taken; their updates do not come by themselves any more.

        Parameters
        ----------
        rank : int
            Ours.
        own : OwnUpdates
            Our updates, to subtract those in a sum.

        Returns
        -------
        bool
            False if an own update in a sum is not kept any more: the master has to say by itself
            what others have made.

        Raises
        ------
        InvalidMessageError
            If an update would be there twice.
        """
        for position, span in self.sums.complete:
            if not self.origins.follows(span, rank):
                return True
            last, before = span.after.get(rank, 0), span.before.get(rank, 0)
            mine = own.between(before + 1, last) if last else []
            if len(mine) < last - before and last:
                return False
            bodies, number = self.sums.take(position)
            self._membership.on_sum(Sum(bodies, span, mine, rank))
            self.origins.note_closed(span.closes)
            connection.skip_to(CONFLATED_STREAM, number + 1)
            for other, sequence in span.after.items():
                if other != rank:
                    connection.skip_to(other, sequence + 1)
                    self._hand_on(self.origins.pass_over(other, sequence), connection)
        return True

    def _hand_on(self, ready: Sequence[UpdateReceived], connection: Connection) -> None:
        for each in ready:
            connection.release(each.charge)
            self._membership.on_update(each.rank, each.update)
