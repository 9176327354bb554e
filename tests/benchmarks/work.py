"""What every relay of a benchmark has to do: hand each worker's updates on to all the others."""

from dataclasses import dataclass
from math import nan

from benchmarks.programs import Meter


@dataclass(frozen=True, slots=True)
class Work:
    """So many workers send so many updates each."""

    workers: int
    updates: int
    body: bytes
    """Of every update."""

    AHEAD = 4
    """Updates of its own that a worker has under way at most."""

    @property
    def others(self) -> int:
        """How many workers get an update."""
        return self.workers - 1

    @property
    def expected(self) -> int:
        """How many updates each worker gets."""
        return self.updates * self.others

    @property
    def gigabits_out(self) -> float:
        """What the relay has to send, without any headers."""
        return 8e-9 * len(self.body) * self.workers * self.expected


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a relay was."""

    gigabits_per_second: float
    gigabits_per_processor_second: float

    @classmethod
    def of(cls, work: Work, meter: Meter) -> "Rate":
        """Return the rate of a relay that has done the work.

        The one per processor second is not a number where the relay was done before the meter
        began: the work of a quick run is that small.
        """
        out, used = work.gigabits_out, meter.processor_seconds
        return cls(out / meter.seconds, out / used if used else nan)
