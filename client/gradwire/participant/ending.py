"""`Ending`: the end of one worker's training, and what the worker still waits for.

A worker sends as much of its residual as the setting `finish_residual` says, and tells the others
that no more comes. It has finished when it has applied the updates of all workers. A worker that
leaves sends its residual and waits for nobody else. An observer only applies updates.
"""

from functools import partial

from gradwire.errors import DeadlineError
from gradwire.participant.contributing import Contributing
from gradwire.replica.push import Push
from gradwire.replica.training_half import TrainingHalf
from gradwire.replica.waits import Procedure, Wait
from gradwire_protocol.messages.admission import Peer
from gradwire_protocol.messages.fields import covers


class Ending:
    """The end of one worker's training."""

    def __init__(self, half: TrainingHalf, sending: Push | Contributing) -> None:
        self._half = half
        self._sending = sending
        self.has_begun = False
        """Whether this worker trains no more."""
        self._is_announced = False
        """Whether the master was told that no more updates come."""

    def begin(self, portion: float | None = None) -> None:
        """Begin to send the residual: a portion of it, or as much as the settings say."""
        self._sending.flush(portion)
        self.has_begun = True

    def wait(self, timeout_seconds: float, *, for_others: bool) -> Procedure[None]:
        """Send the residual, as fast as the slowest worker takes it.

        Parameters
        ----------
        timeout_seconds : float
            After it, a `DeadlineError` says what is missing. It can be called again.
        for_others : bool
            Whether the end is that of all: this worker then tells the others that no more comes,
            and waits until they have finished, and all their updates are applied.
        """
        half = self._half
        deadline = half.clock() + timeout_seconds
        while True:
            # Read before the inbox is emptied: an update that comes in between is news then.
            before = half.membership.news
            half.check_connected()
            if self._advance(for_others=for_others):
                return
            if half.clock() >= deadline:
                method = "finish" if for_others else "leave"
                raise DeadlineError(
                    f"{method}() waited in vain for {self._purpose()}. Call it again to wait on, "
                    "or close() to leave as it is"
                )
            yield Wait(partial(self._has_news, before), deadline, self._purpose)

    # Private.

    def _advance(self, *, for_others: bool) -> bool:
        """Apply what has come, and send of the residual what is possible; return if that is all."""
        half = self._half
        half.applying.pull()
        if not for_others:
            return self._sending.flush_on()
        if self.has_begun and not self._is_announced and self._sending.flush_on():
            half.membership.post(half.worker.finish)
            self._is_announced = True
        return self._is_complete()

    def _is_complete(self) -> bool:
        """Return whether all workers have finished, and all their updates are applied."""
        membership = self._half.membership
        return (
            membership.finished is not None
            and covers(self._half.shared.versions, membership.finished)
            and not membership.repairing
        )

    def _has_news(self, before: object) -> bool:
        """Return whether there is anything to do since `Membership.news` was this."""
        is_same = self._half.membership.news == before
        return not is_same or self._is_complete() or self._sending.may_flush_on()

    def _purpose(self) -> str:
        """Return what the end waits for."""
        membership = self._half.membership
        if self.has_begun and not self._is_announced:
            return f"the slowest worker to take what is left: {self._sending.unflushed} elements"
        if membership.finished is None:
            return "other workers to finish: " + ", ".join(map(self._progress, membership.others))
        return f"{self._missing()} updates of other workers to arrive"

    def _progress(self, peer: Peer) -> str:
        """Return how far another worker is, and how fast."""
        steps = self._half.shared.versions.get(peer.rank, 0)
        pace = self._half.membership.clocks.paces.get(peer.rank)
        rate = f", {1e6 / pace:.3g} a second" if pace else ""
        return f"rank {peer.rank} ({peer.name}; {steps} updates{rate})"

    def _missing(self) -> int:
        """Return how many updates of others were not applied yet."""
        finished = self._half.membership.finished or {}
        return sum(finished.values()) - sum(self._half.shared.versions.values())
