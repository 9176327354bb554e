"""`OwnFigures`: a worker's speed and delays, about once a second, for people who watch the run.

They go the way of `Session.log`, as series of their own.
"""

from math import nan
from typing import Final

from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant

PREFIX: Final = "gradwire/"
"""Of the names of these series; a script cannot log under such a name."""

EVERY_SECONDS: Final = 1.0


class OwnFigures(Feature):
    """Reports after a step, if the last report is a second old."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._at = participant.clock()
        self._steps = 0
        self._bytes = 0
        self._busy_seconds = 0.0
        self._wait_seconds = 0.0
        self._is_bounded = False
        """Whether it has ever waited for slower workers, or could have."""

    def after_step(self) -> None:
        """Report, if it is time."""
        self.report()

    def report(self) -> None:
        """Report, if the last report is a second old: also while it waits for a step."""
        now = self._participant.clock()
        if now - self._at >= EVERY_SECONDS:
            figures = self._figures(now - self._at)
            self._at = now
            self._participant.log({PREFIX + name: value for name, value in figures.items()})

    def _figures(self, seconds: float) -> dict[str, float]:
        """Return the figures of the time since the last report, named as in `SessionStats`."""
        tally, delays = self._participant.tally, self._participant.delays
        busy_seconds = tally.encode_seconds + tally.apply_seconds
        figures = {
            "steps_per_second": (tally.steps - self._steps) / seconds,
            "encoded_bytes_per_second": (tally.bytes_encoded - self._bytes) / seconds,
            "overhead_ratio": (busy_seconds - self._busy_seconds) / seconds,
            "staleness_updates": delays.own_staleness,
            "residual_age_steps": delays.residual_age_steps,
        }
        if tally.updates_sent:
            figures |= {"density_ratio": tally.density, "threshold": tally.threshold}
        bound = tally.staleness_bound
        self._is_bounded |= bound is not None
        if self._is_bounded:
            figures["staleness_bound"] = nan if bound is None else bound
            figures["wait_ratio"] = (tally.wait_seconds - self._wait_seconds) / seconds
            figures["waited_for"] = nan if tally.waited_for is None else tally.waited_for
        self._steps, self._bytes = tally.steps, tally.bytes_encoded
        self._wait_seconds = tally.wait_seconds
        self._busy_seconds = busy_seconds
        return figures
