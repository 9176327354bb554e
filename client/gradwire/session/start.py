"""What a worker waits for before its first step: `Meeting`, then `WarmStart`."""

import logging

from gradwire.errors import DeadlineError
from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, Wait
from gradwire_protocol.messages.admission import Peer

logger = logging.getLogger("gradwire.join")

RANKS_NAMED_MAX = 8
"""More missing ranks than this are not listed."""


class Meeting:
    """At the start of a run, workers wait until all of them are there.

    Steps that one worker makes before the others have joined are lost on these: each begins with
    the first worker's parameters, but sees other data, and a short run is half over. So `join`
    returns when as many workers take part as the setting `workers` says, which launchers say as
    WORLD_SIZE. After `start_timeout_seconds` the run begins with those that are there. While others
    train nobody waits: a worker that comes late, or comes back, begins with the next update of
    another one. That the run has had updates before says nothing: it may be one that a master has
    resumed from a checkpoint, and all its workers are still to come.
    """

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._membership = participant.membership
        self._workers = participant.settings.workers or 1
        self._timeout = participant.settings.start_timeout_seconds

    def wait(self) -> Procedure[None]:
        """Wait for the others, and log who takes part.

        Raises `ConnectionLostError` if the master ends, or is lost and not reached again.
        """
        participant = self._participant
        if not self._is_over():
            with participant.applying.lent(applies=True):  # to a master that has restarted
                yield from participant.until(self._is_over, self._timeout, self._purpose)
            participant.check_connected()
        self._log()

    # Private.

    def _is_over(self) -> bool:
        """Return whether all are there, others train or have finished, or the master ends."""
        membership = self._membership
        others_train = membership.updates_received > 0 or membership.finished is not None
        return not self._missing() or others_train or membership.stopping is not None

    def _missing(self) -> int:
        return max(self._workers - len(self._membership.peers), 0)

    def _purpose(self) -> str:
        return f"{self._missing()} of {_count(self._workers)}{self._names()}"

    def _names(self) -> str:
        """Return which ranks are missing, if that is known and they are few."""
        there = {peer.rank for peer in self._membership.peers}
        missing = sorted(set(range(self._workers)) - there)
        if len(missing) != self._missing() or len(missing) > RANKS_NAMED_MAX:
            return ""
        return f", rank {', '.join(map(str, missing))}"

    def _log(self) -> None:
        participant, there = self._participant, len(self._membership.peers)
        updates = sum(participant.shared.versions.values()) + self._membership.updates_received
        if not self._is_over():
            logger.warning(
                "training begins with %d of %s: %d did not come in %g s (start_timeout_seconds)%s. "
                "Workers that come later take part",
                there,
                _count(self._workers),
                self._missing(),
                self._timeout,
                self._names(),
            )  # fmt: skip
        elif updates:
            logger.info(
                "training goes on with %s: the run has had %d updates", _count(there), updates
            )
        elif participant.settings.workers is None and there == 1:
            logger.info(
                "training begins with this worker alone, and others may join. To begin together, "
                "say how many there are: workers=N, or GRADWIRE_WORKERS"
            )
        else:
            logger.info("training begins with %s", _count(there))


class WarmStart:
    """In the first steps of a run only some workers train, and others wait in `join`.

    Strom (2015) starts with one worker: in the first steps the changes of many workers, each made
    without the others', add up to more than the model can take. The `warm_up_workers` of the lowest
    ranks train, for `warm_up_steps` on average. A worker that waits takes part and applies what
    comes, so that it begins with the parameters of that moment. It begins when the run has made its
    first steps, or when a training worker is gone and it is next.
    """

    def __init__(self, participant: Participant) -> None:
        settings = participant.settings
        self._participant = participant
        self._membership = participant.membership
        self._workers = settings.warm_up_workers or 0
        self._updates = self._workers * settings.warm_up_steps
        """How many the first steps of the run are."""
        self._timeout = settings.join_timeout_seconds
        """Longest time without any update."""

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
                received, deadline = known, self._participant.clock() + self._timeout
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
    def _made(self) -> int:
        """How many updates the run has had."""
        return sum(self._participant.shared.versions.values())

    @property
    def _training(self) -> list[Peer]:
        """The workers that come before this one."""
        rank = self._participant.welcome.rank
        return [each for each in self._membership.peers if each.rank < rank and not each.finished]

    def _may_train(self) -> bool:
        return (
            self._made >= self._updates
            or len(self._training) < self._workers
            or self._membership.finished is not None
        )

    def _check(self, deadline: float) -> None:
        self._participant.check_connected()
        if self._participant.clock() >= deadline:
            ranks = ", ".join(f"{peer.rank} ({peer.name})" for peer in self._training)
            raise DeadlineError(
                f"no update came for {self._timeout:g} s while this worker waited for "
                f"{self._purpose()}. They are made by ranks {ranks}"
            )

    def _purpose(self) -> str:
        return f"the first steps of the run: {self._progress()}"

    def _progress(self) -> str:
        return f"{self._made} of {self._updates} updates were made"


def _count(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"
