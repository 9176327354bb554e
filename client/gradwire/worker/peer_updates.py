"""`PeerUpdates`: updates of others, on their way from the connection to the training thread.

Updates overtake each other, the WELCOME and the sums that replace some of them. They are handed on
in the order of their sequence, and only then is their credit released: so credit bounds how many
wait.
"""

from collections.abc import Sequence

from gradwire.worker.membership import Membership
from gradwire.worker.peer_sequences import PeerSequences, SumAssembly
from gradwire_protocol import Connection
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

    def pass_over_if_complete(self, rank: int, connection: Connection) -> None:
        """Hand on a sum, if it is complete; its updates do not come by themselves any more.

        `rank` is our own, of which the sum must contain nothing. Raises `InvalidMessageError` if an
        update would be missing, or be there twice.
        """
        span = self.sums.span
        if span is None:
            return
        self.origins.check_follows(span, rank)
        self._membership.on_sum(self.sums.take_sum())
        self.origins.note_closed(span.closes)
        for other, sequence in span.after.items():
            connection.skip_to(other, sequence + 1)
            self._hand_on(self.origins.pass_over(other, sequence), connection)

    def _hand_on(self, ready: Sequence[UpdateReceived], connection: Connection) -> None:
        for each in ready:
            connection.release(each.charge)
            self._membership.on_update(each.rank, each.update)
