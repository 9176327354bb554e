"""`OwnUpdates`: what has become of the updates that a worker has made.

The training half numbers each update and puts it into the log as it encodes it; soon after, it is
posted to the network half. From then on it is sent whenever the worker is live and the master lacks
it. It is kept until every worker has it: a master may lose the connection, or its memory.
"""

from collections.abc import Iterator
from dataclasses import replace

from gradwire.worker.membership import Membership
from gradwire.worker.update_log import OwnUpdate, OwnUpdateLog
from gradwire_protocol import InvalidMessageError


class OwnUpdates:
    """The updates of one worker, from their encoding until every worker has them."""

    def __init__(self, membership: Membership) -> None:
        self.sequence = 0
        """Of the last one that was posted. The log may have later ones already."""
        self.log = OwnUpdateLog()
        """Those that some worker lacks."""
        self.accepted = 0
        """How many the master had when it let us in."""
        self.based_on_max = 0
        """How many updates of others the master had then."""
        self._membership = membership
        self._undelivered: dict[int, tuple[int, float | None]] = {}
        """By sequence: bytes, and when it was posted; None once a lost connection came between."""

    def note_posted(self, update: OwnUpdate, now: float) -> None:
        """Note that an update was posted and is to be sent."""
        self.sequence = update.sequence
        self._undelivered[update.sequence] = len(update.body), now

    @property
    def delivered(self) -> int:
        """Sequence up to which all updates were delivered."""
        return min(self._undelivered, default=self.sequence + 1) - 1

    def on_delivered(self, sequence: int, now: float | None = None) -> None:
        """Note that an update was delivered, just now if the time is given.

        An update that was sent again over another connection may have been delivered before: the
        master had it, and lost the connection before it had looked at it.
        """
        posted = self._undelivered.pop(sequence, None)
        if posted is not None:
            size, at = posted
            self._membership.on_delivered(size, None if now is None or at is None else now - at)

    def on_delivered_up_to(self, sequence: int) -> None:
        """Note that every update up to this one was delivered."""
        for each in [each for each in self._undelivered if each <= sequence]:
            self.on_delivered(each)

    def check_master_can_resume(self) -> None:
        """Raise `InvalidMessageError` if the master lacks updates that are not kept any more.

        So it does if the master has more than was sent.
        """
        if self.accepted > self.sequence or not self.log.reaches_back_to(self.accepted):
            raise InvalidMessageError(
                f"Welcome back after update {self.accepted}; {self.sequence} were sent and "
                f"{len(self.log)} are kept"
            )

    def missing(self) -> Iterator[OwnUpdate]:
        """Yield the updates that the master lacks."""
        for update in self.between(self.accepted + 1, self.sequence):
            if update.sequence in self._undelivered:
                self._undelivered[update.sequence] = len(update.body), None
            # It may have been computed with updates that this master has not accepted yet.
            yield replace(update, based_on=min(update.based_on, self.based_on_max))

    def has(self, sequence: int) -> bool:
        """Return whether an update is kept."""
        first = self.log.first
        return first is not None and first <= sequence <= self.sequence

    @property
    def kept_from(self) -> int:
        """Sequence of the first one that is kept; where none is, of the next one."""
        return min(self.log.first or self.sequence + 1, self.sequence + 1)

    def between(self, first: int, last: int) -> list[OwnUpdate]:
        """Return the kept and posted updates from `first` to `last`."""
        return self.log.between(first, min(last, self.sequence))
