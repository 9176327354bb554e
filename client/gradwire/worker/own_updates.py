"""`OwnUpdates`: what has become of the updates that a worker has made.

The training half numbers each and puts it into the log as it encodes it; soon after, the network
half is handed it. From then on it is sent whenever the worker is live and the master lacks it, and
it is kept until everyone has it: a master may lose the connection, or its memory.
"""

from collections.abc import Iterator
from dataclasses import replace

from gradwire.worker.membership import Membership
from gradwire.worker.update_log import OwnUpdate, OwnUpdateLog
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.updates import EncodedUpdate


class OwnUpdates:
    """The updates of one worker, from their encoding to everyone's having them.

    Parameters
    ----------
    membership : Membership
        Is told what is delivered, and what was corrected.
    """

    def __init__(self, membership: Membership) -> None:
        self.sequence = 0
        """Of the last one that was handed over. The log may have later ones already."""
        self.kept = OwnUpdateLog()
        """Those that not everyone has."""
        self.accepted = 0
        """How many the master had when it let us in."""
        self.based_on_max = 0
        """How many updates of others it had then."""
        self._membership = membership
        self._undelivered: dict[int, int] = {}
        """Bytes by sequence."""
        self._corrected = 0
        """The last one that others have otherwise than we sent it: it was clipped."""

    def note_handed_over(self, update: OwnUpdate) -> None:
        """Note that one is to be sent from now on."""
        self.sequence = update.sequence
        self._undelivered[update.sequence] = len(update.body)

    @property
    def delivered(self) -> int:
        """The last one up to which all were delivered."""
        return min(self._undelivered, default=self.sequence + 1) - 1

    @property
    def first_as_sent(self) -> int | None:
        """The first one kept from which on others have all as we sent them; None without any."""
        first = self.kept.first
        if first is None or first > self.sequence:
            return None
        return max(first, self._corrected + 1)

    def on_delivered(self, sequence: int) -> None:
        """Note that one was delivered.

        What was sent again over another connection may have been delivered before: the master had
        it, and lost the connection before it had looked at it.
        """
        size = self._undelivered.pop(sequence, None)
        if size is not None:
            self._membership.on_delivered(size)

    def on_all_delivered(self) -> None:
        """Note that the master has everything."""
        for sequence in list(self._undelivered):
            self.on_delivered(sequence)

    def on_accepted(self) -> None:
        """Note that those are delivered which the master had when it let us in."""
        for sequence in [each for each in self._undelivered if each <= self.accepted]:
            self.on_delivered(sequence)

    def correct(self, update: EncodedUpdate) -> None:
        """Take one that comes back: the master has passed on less than it.

        Corrections need no order, and each comes once, like any message of a connection. The
        master says that the run is finished when all of them have arrived.

        Raises
        ------
        InvalidMessageError
            If it was never sent.
        """
        if update.sequence > self.sequence:
            raise InvalidMessageError(
                f"correction of update {update.sequence}; {self.sequence} were sent"
            )
        self._corrected = max(self._corrected, update.sequence)
        self._membership.on_correction(update)

    def check_reach_back(self) -> None:
        """Refuse to go on with a master that lacks something which is not kept any more.

        Raises
        ------
        InvalidMessageError
            Then, or if it has more than was sent.
        """
        if self.accepted > self.sequence or not self.kept.reaches_back_to(self.accepted):
            raise InvalidMessageError(
                f"Welcome back after update {self.accepted}; {self.sequence} were sent and "
                f"{len(self.kept)} are kept"
            )

    def lacking(self) -> Iterator[OwnUpdate]:
        """Iterate over what the master does not have."""
        for update in self.between(self.accepted + 1, self.sequence):
            # It may have been computed with updates that this master has not accepted yet.
            yield replace(update, based_on=min(update.based_on, self.based_on_max))

    def between(self, first: int, last: int) -> list[OwnUpdate]:
        """Return those from one to another, as far as they are kept and were handed over."""
        return self.kept.between(first, min(last, self.sequence))
