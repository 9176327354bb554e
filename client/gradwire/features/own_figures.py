"""`OwnFigures`: a worker's speed and delays, about once a second, for people who watch the run.

They go the way of `Session.log`, as series of their own: see ``/runs/NAME/series`` at the master.
"""

from collections.abc import Sequence
from typing import Final

from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire.participant.sharded_stats import mean_of_parts

PREFIX: Final = "gradwire/"
"""Of the names of these series; a script cannot log under such a name."""

EVERY_SECONDS: Final = 1.0


class OwnFigures(Feature):
    """Reports after a step, if the last report is a second old.

    Parameters
    ----------
    shards : sequence of Participant
        The worker at each of its masters; the first one's master gets the figures of all.
    """

    def __init__(self, shards: Sequence[Participant]) -> None:
        self._shards = shards
        self._first = shards[0]
        self._elements = [shard.shared.parameters.layout.elements for shard in shards]
        self._at = self._first.clock()
        self._steps = 0
        self._bytes = 0
        self._busy_seconds = 0.0

    def after_step(self) -> None:
        """Report, if it is time."""
        now = self._first.clock()
        if now - self._at >= EVERY_SECONDS:
            figures = self._figures(now - self._at)
            self._at = now
            self._first.log(None, {PREFIX + name: value for name, value in figures.items()})

    def _figures(self, seconds: float) -> dict[str, float]:
        """Return the figures of the time since the last report, as `stats_of_all` merges them."""
        tallies = [shard.tally for shard in self._shards]
        delays = [shard.delays for shard in self._shards]
        steps = tallies[0].steps
        encoded = sum(tally.bytes_encoded for tally in tallies)
        busy_seconds = sum(tally.encode_seconds + tally.apply_seconds for tally in tallies)
        figures = {
            "steps_per_second": (steps - self._steps) / seconds,
            "encoded_bytes_per_second": (encoded - self._bytes) / seconds,
            "overhead_ratio": (busy_seconds - self._busy_seconds) / seconds,
            "staleness_updates": max(each.own_staleness for each in delays),
            "residual_age_steps": max(each.residual_age_steps for each in delays),
            "delay_steps": max(shard.compensation.added_lag().total for shard in self._shards),
        }
        if any(tally.updates_sent for tally in tallies):
            figures["density_ratio"] = mean_of_parts(
                [tally.density for tally in tallies], self._elements
            )
            figures["threshold"] = max(tally.threshold for tally in tallies)
        if tallies[0].momentum is not None:
            figures["momentum"] = tallies[0].momentum
        self._steps, self._bytes, self._busy_seconds = steps, encoded, busy_seconds
        return figures
