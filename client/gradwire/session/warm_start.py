"""`WarmStart`: in the first steps of a run only some workers train, and others wait in `join`.

Strom (2015) starts with one worker: in the first steps the changes of many workers, each made
without the others', add up to more than the model can take. The workers of the lowest ranks train.
A worker that waits takes part and applies what comes, so that it begins with the parameters of that
moment. It begins when the run has made its first steps, or when a training worker is gone and it is
next.
"""

import logging

from gradwire.errors import DeadlineError
from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, Wait
from gradwire_protocol.messages.admission import Peer

logger = logging.getLogger("gradwire.join")


class WarmStart:
    """The wait of one worker for the first steps of a run.

    Parameters
    ----------
    workers : int
        How many train.
    steps : int
        How many steps each of them makes, on average.
    timeout_seconds : float
        Longest time without any update.
    """

    def __init__(
        self, workers: int, steps: int, participant: Participant, *, timeout_seconds: float
    ) -> None:
        self._workers = workers
        self._steps = steps
        self._participant = participant
        self._membership = participant.membership
        self._rank = participant.welcome.rank
        self._timeout = timeout_seconds
        self._clock = participant.clock

    def wait(self) -> Procedure[None]:
        """Wait until this worker may train.

        Raises `DeadlineError` if no update comes for too long, and `ConnectionLostError` if the
        master ends, or is lost and not reached again.
        """
        membership = self._membership
        received, deadline, has_waited = -1, 0.0, False
        while True:
            before, known = membership.news, membership.updates_received
            if known != received:
                received, deadline = known, self._clock() + self._timeout
            self._participant.applying.pull()
            if self._may_train():
                break
            self._check(deadline)
            has_waited = True
            yield Wait(lambda: membership.news != before, deadline, self._purpose)  # noqa: B023
        if has_waited:
            logger.info("begin to train: %s", self._progress())
        self._participant.note_run_steps()

    # Private.

    @property
    def _share(self) -> float:
        """The part of the first steps that is over."""
        return sum(self._participant.shared.versions.values()) / (self._workers * self._steps)

    @property
    def _training(self) -> list[Peer]:
        """The workers that come before this one."""
        peers = self._membership.peers
        return [peer for peer in peers if peer.rank < self._rank and not peer.finished]

    def _may_train(self) -> bool:
        return (
            self._share >= 1
            or len(self._training) < self._workers
            or self._membership.finished is not None
        )

    def _check(self, deadline: float) -> None:
        self._participant.check_connected()
        if self._clock() >= deadline:
            ranks = ", ".join(f"{peer.rank} ({peer.name})" for peer in self._training)
            raise DeadlineError(
                f"no update came for {self._timeout:g} s while this worker waited for the first "
                f"steps of the run: {self._progress()}. They are made by ranks {ranks}"
            )

    def _purpose(self) -> str:
        return f"the first steps of the run: {self._progress()}"

    def _progress(self) -> str:
        made = sum(self._participant.shared.versions.values())
        return f"{made} of {self._workers * self._steps} updates were made"
