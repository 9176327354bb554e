"""`SimulatedBound`: a bound on the staleness of a `SimulatedWorker`.

The rule is the production one, `ClockLags`; what `StalenessBound` does on a training thread that
waits, this does in steps that are tried again and again.
"""

from typing import Final

from gradwire.features.clock_lags import ClockLags
from gradwire_codecs import multiple_of
from support.simulated_worker import CHANGE, SimulatedWorker

TRY_AGAIN_SECONDS: Final = 0.01


class SimulatedBound:
    """Makes a worker that is live wait for others that are too far behind.

    Parameters
    ----------
    worker : SimulatedWorker
        Whose clock begins here.
    bound : int
    timeout_seconds : float
    """

    def __init__(self, worker: SimulatedWorker, bound: int, timeout_seconds: float) -> None:
        self.lead = ClockLags(bound, timeout_seconds)
        self.held_by: dict[int, int] = {}
        """By rank: how far those are behind that the worker waits for."""
        self.longest_wait = 0.0
        self.set_aside: list[int] = []
        """Ranks that were not waited for any longer, one by one."""
        self._worker = worker
        self._waited_since: float | None = None
        self._reconnections = worker.reconnections
        self._heard = worker.clocks.first is not None
        worker.clock = max(worker.clocks.latest.values(), default=1)
        if worker.lost is None:
            worker.push([])

    def may_step(self) -> bool:
        """Return whether the next step may begin; if not, do what a worker does that waits."""
        now = self._worker.now
        self.held_by = self._look()
        if self.held_by:
            if self._waited_since is None:
                self._waited_since = now
            self._wait()
        if self._waited_since is not None and not self.held_by:
            self.longest_wait = max(self.longest_wait, now - self._waited_since)
            self._waited_since = None
        return not self.held_by

    # Private.

    def _look(self) -> dict[int, int]:
        worker = self._worker
        if worker.reconnections != self._reconnections or worker.lost is not None:
            self._reconnections = worker.reconnections
            self.lead.set_all_aside()
        if worker.clocks.first is not None and not self._heard:
            self._heard = True
            worker.clock = max(worker.clock, worker.clocks.first)
        return self.lead.look(worker.clock, worker.clocks.latest, worker.others, worker.now)

    def _wait(self) -> None:
        worker = self._worker
        worker.pull()
        if worker.clock_told != worker.clock and worker.lost is None and not worker.stopping:
            threshold = multiple_of(2 * CHANGE, float(worker.replica.quantum))
            worker.push(worker.feedback.encode(threshold))
        self.set_aside += self.lead.set_late_aside(worker.now)
        self.held_by = self._look()
