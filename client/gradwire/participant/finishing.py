"""`Finishing`: the end of one worker's run, and what the worker still waits for.

A worker sends as much of its residual as the setting `finish_residual` says, and tells the others
that no more comes. It has finished when it has applied the updates of all workers. An observer only
applies updates.
"""

from gradwire.participant.contributing import Contributing
from gradwire.replica.pull import Pull
from gradwire.replica.push import Push
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_protocol.messages.admission import Peer
from gradwire_protocol.messages.fields import covers


class Finishing:
    """The end of one worker's run."""

    def __init__(
        self,
        shared: SharedParameters,
        sending: Push | Contributing,
        applying: Pull,
        membership: Membership,
        worker: Worker,
    ) -> None:
        self._shared = shared
        self._sending = sending
        self._applying = applying
        self._membership = membership
        self._worker = worker
        self.has_begun = False
        """Whether this worker trains no more."""
        self._is_announced = False
        """Whether the master was told that no more updates come."""

    def begin(self, portion: float | None = None) -> None:
        """Begin to send the residual: a portion of it, or as much as the settings say."""
        self._sending.flush(portion)
        self.has_begun = True

    def advance(self) -> None:
        """Apply what has come, and send as much of the residual as the others keep up with."""
        self._applying.pull()
        if self.has_begun and not self._is_announced and self._sending.flush_on():
            self._membership.post(self._worker.finish)
            self._is_announced = True

    def send_rest(self) -> bool:
        """Apply what has come, and send of the residual what is possible; return if all is sent."""
        self._applying.pull()
        return self._sending.flush_on()

    def is_complete(self) -> bool:
        """Return whether all workers have finished, and all their updates are applied."""
        finished = self._membership.finished
        return (
            finished is not None
            and covers(self._shared.versions, finished)
            and not self._membership.repairing
        )

    def has_news(self, before: object) -> bool:
        """Return whether `advance` has anything to do.

        `before` is `Membership.news` before the inbox was last emptied.
        """
        return self._membership.news != before or self.is_complete() or self._sending.may_flush_on()

    def purpose(self) -> str:
        """Return what the end waits for."""
        membership = self._membership
        if self.has_begun and not self._is_announced:
            return f"the slowest worker to take what is left: {self._sending.unflushed} elements"
        if membership.finished is None:
            return "other workers to finish: " + ", ".join(map(self._progress, membership.others))
        return f"{self._missing()} updates of other workers to arrive"

    def unsent_message(self, method: str) -> str:
        """Return the error message of a method that could not send the residual in time."""
        return (
            f"{method}() waited in vain for the slowest worker to take what is left: "
            f"{self._sending.unflushed} of our elements are not sent yet. Call it again to "
            "wait on, or close() to leave without sending them"
        )

    def timeout_message(self) -> str:
        """Return the error message for a wait that took too long."""
        membership = self._membership
        finished = membership.finished
        if self.has_begun and not self._is_announced:
            return self.unsent_message("finish")
        if finished is None:
            others = ", ".join(f"{peer.rank} ({peer.name})" for peer in membership.others)
            return (
                f"finish() waited in vain for these ranks to finish: {others}. "
                "Call it again to wait on, or close() to leave without them"
            )
        return f"finish() waited in vain for {self._missing()} updates of other workers to arrive"

    # Private.

    def _progress(self, peer: Peer) -> str:
        """Return how far another worker is, and how fast."""
        steps = self._shared.versions.get(peer.rank, 0)
        pace = self._membership.clocks.paces.get(peer.rank)
        rate = f", {1e6 / pace:.3g} a second" if pace else ""
        return f"rank {peer.rank} ({peer.name}; {steps} updates{rate})"

    def _missing(self) -> int:
        """Return how many updates of others were not applied yet."""
        finished = self._membership.finished or {}
        return sum(finished.values()) - sum(self._shared.versions.values())
