"""`Finishing`: how far a worker is with the end of a run, and what it still waits for.

It sends of its residual what the setting `finish_residual` says, tells the others that no more
comes, and has finished when everything that anyone sent is applied. An observer does only the last
of these.
"""

from gradwire.replica.pull import Pull
from gradwire.replica.push import Push
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_protocol.messages.fields import count_updates, covers


class Finishing:
    """The end of one worker's run.

    Parameters
    ----------
    shared : SharedParameters
    sending : Push
    applying : Pull
    membership : Membership
    worker : Worker
        Which is told when everything was sent.
    """

    def __init__(
        self,
        shared: SharedParameters,
        sending: Push,
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
        """Whether nothing is trained any more."""
        self._said = False
        """Whether the others are told that no more comes."""

    def begin(self) -> None:
        """Begin to send what is left."""
        self._sending.flush()
        self.has_begun = True

    def go_on(self) -> None:
        """Apply what came, and send of the rest as much as the others keep up with."""
        self._applying.pull()
        if self.has_begun and not self._said and self._sending.flush_on():
            self._membership.post(self._worker.finish)
            self._said = True

    def is_complete(self) -> bool:
        """Return whether all have finished, and everything that they sent is applied."""
        finished = self._membership.finished
        return (
            finished is not None
            and covers(self._shared.versions, finished)
            and not self._membership.mending
        )

    def has_news(self, updates_known: int) -> bool:
        """Return whether there is anything to do.

        Parameters
        ----------
        updates_known : int
            How many updates had come when the inbox was last emptied.
        """
        return (
            self._membership.updates_received != updates_known
            or self._membership.wanted
            or self._membership.comparison is not None
            or self.is_complete()
            or self._sending.may_flush_on()
        )

    def what_it_waits_for(self) -> str:
        """Return what to say when it has waited for too long."""
        membership = self._membership
        finished = membership.finished
        if self.has_begun and not self._said:
            return (
                "finish() waited in vain for the slowest worker to take what is left: "
                f"{self._sending.unflushed} of our elements are not sent yet. Call it again to "
                "wait on, or close() to leave without sending them"
            )
        if finished is None:
            others = [
                f"{peer.rank} ({peer.name})"
                for peer in membership.peers
                if not peer.finished and peer.rank != self._shared.rank
            ]
            return (
                f"finish() waited in vain for these ranks to finish: {', '.join(others)}. "
                "Call it again to wait on, or close() to leave without them"
            )
        missing = count_updates(finished, without=-1) - count_updates(
            self._shared.versions, without=-1
        )
        return f"finish() waited in vain for {missing} updates of other workers to arrive"
