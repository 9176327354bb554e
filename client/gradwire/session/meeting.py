"""`Meeting`: at the start of a run, workers wait until all of them are there.

Steps that one worker makes before the others have joined are lost on these: each begins with the
first worker's parameters, but sees other data, and a short run is half over. So `join` returns when
as many workers take part as the setting `workers` says, which launchers say as WORLD_SIZE. While
others train nobody waits: a worker that comes late, or comes back, begins with the next update of
another one. That the run has had updates before says nothing: it may be one that a master has
resumed from a checkpoint, and all its workers are still to come.
"""

import logging

from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, until

logger = logging.getLogger("gradwire.join")

RANKS_NAMED_MAX = 8
"""More missing ranks than this are not listed."""


class Meeting:
    """The wait of one worker for all others.

    Parameters
    ----------
    workers : int or None
        How many there will be, this one included; None if nobody has said.
    timeout_seconds : float
        After it the run begins with those that are there.
    """

    def __init__(
        self, workers: int | None, participant: Participant, *, timeout_seconds: float
    ) -> None:
        self._workers = workers
        self._participant = participant
        self._membership = participant.membership
        self._timeout = timeout_seconds

    def wait(self) -> Procedure[None]:
        """Wait for the others, and log who takes part.

        Raises `ConnectionLostError` if the master ends, or is lost and not reached again.
        """
        participant = self._participant
        if self._workers is not None and not self._is_over():
            deadline = participant.clock() + self._timeout
            with participant.applying.lent(applies=True):  # to a master that has restarted
                yield from until(
                    self._membership, self._is_over, deadline, participant.clock, self._purpose
                )
            participant.check_connected()
        self._log()

    # Private.

    def _updates(self) -> int:
        """Return how many updates the run has had, as far as this worker knows."""
        return sum(self._participant.shared.versions.values()) + self._membership.updates_received

    def _others_train(self) -> bool:
        """Return whether others have trained since this worker was let in, or have finished."""
        return self._membership.updates_received > 0 or self._membership.finished is not None

    def _is_over(self) -> bool:
        return not self._missing() or self._others_train() or self._membership.stopping is not None

    def _missing(self) -> int:
        return max((self._workers or 1) - len(self._membership.peers), 0)

    def _purpose(self) -> str:
        return f"{self._missing()} of {_count(self._workers or 1)}{self._names()}"

    def _names(self) -> str:
        """Return which ranks are missing, if that is known and they are few."""
        there = {peer.rank for peer in self._membership.peers}
        missing = sorted(set(range(self._workers or 1)) - there)
        if len(missing) != self._missing() or len(missing) > RANKS_NAMED_MAX:
            return ""
        return f", rank {', '.join(map(str, missing))}"

    def _log(self) -> None:
        there, updates = len(self._membership.peers), self._updates()
        if not self._is_over():
            logger.warning(
                "training begins with %d of %s: %d did not come in %g s (start_timeout_seconds)%s. "
                "Workers that come later take part",
                there,
                _count(self._workers or 1),
                self._missing(),
                self._timeout,
                self._names(),
            )  # fmt: skip
        elif updates:
            logger.info(
                "training goes on with %s: the run has had %d updates", _count(there), updates
            )
        elif self._workers is None and there == 1:
            logger.info(
                "training begins with this worker alone, and others may join. To begin together, "
                "say how many there are: workers=N, or GRADWIRE_WORKERS"
            )
        else:
            logger.info("training begins with %s", _count(there))


def _count(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"
