"""`Inputs`: what an estimate is about."""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gradwire.cli.estimate.costs import Costs
from gradwire.cli.estimate.quantities import check_between
from gradwire.cli.estimate.sizes import Traffic, sum_bytes, traffic_of, union_density, update_bytes
from gradwire.errors import UsageError
from gradwire_codecs.format.update import ELEMENTS_MAX
from gradwire_protocol.limits import STREAMS_MAX
from gradwire_protocol.messages.admission import SHARDS_MAX

STEP_SECONDS_MAX: Final = 3600.0
RTT_SECONDS_MAX: Final = 60.0
RATE_MIN, RATE_MAX = 1e3, 1e13
DENSITY_MIN: Final = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A training, its network, and the number of workers."""

    step_seconds: float
    """A step without gradwire: forward, backward, optimizer."""
    parameters: int
    density: float
    """Fraction of all parameters that an update changes."""
    workers: int
    link: float
    """Rate at which each worker can receive, in bits per second."""
    link_up: float
    """Rate at which each worker can send, in bits per second."""
    master_link: float
    """Rate at which the master can send, and receive, in bits per second."""
    rtt_seconds: float
    """Round trip between a worker and the master."""
    masters: int = 1
    """Masters that share the parameters, each with a link and a processor of its own."""
    relays: int = 0
    """Relays of each master, with a link as the master's; without them, workers are at the master.
    """
    size_ratio: float = 1.0
    """Size of real updates over that of updates with hits at random places."""
    costs: Costs = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse values beyond their limits, naming both."""
        check = partial(check_between, low_is_in=False)
        check(self.step_seconds, 0, STEP_SECONDS_MAX, "--step-seconds", unit=" s")
        check_between(self.parameters, 1, ELEMENTS_MAX, "--parameters")
        check_between(self.density, DENSITY_MIN, 1, "--density")
        check_between(self.workers, 1, STREAMS_MAX, "--workers")
        for name, rate in (
            ("--link", self.link), ("--link-up", self.link_up), ("--master-link", self.master_link)
        ):  # fmt: skip
            check_between(rate, RATE_MIN, RATE_MAX, name, unit=" bit/s")
        check_between(self.rtt_seconds, 0, RTT_SECONDS_MAX, "--rtt", unit=" s")
        check_between(self.masters, 1, min(SHARDS_MAX, self.parameters), "--masters")
        check_between(self.relays, 0, STREAMS_MAX, "--relays")
        if self.hits < 1:
            raise UsageError(
                f"--density={self.density:g} of {self.parameters} parameters is less than one "
                f"parameter; it has to be at least {1 / self.parameters:g}"
            )

    @property
    def hits(self) -> float:
        """Elements that an update changes."""
        return self.parameters * self.density

    @property
    def update_bytes(self) -> float:
        """Bytes of an update."""
        return self.size_ratio * update_bytes(self.parameters, self.density)

    @property
    def traffic(self) -> Traffic:
        """What a round takes of a worker's link."""
        if self.relays:
            return traffic_of(self.update_bytes, self.sum_bytes(self.workers), 1)
        return traffic_of(self.update_bytes, self.update_bytes, self.workers - 1)

    def sum_hits(self, updates: float) -> float:
        """Return the elements that a sum of so many updates changes."""
        return self.parameters * union_density(self.density, updates)

    def sum_bytes(self, updates: float) -> float:
        """Return its bytes."""
        if updates <= 1:
            return self.update_bytes
        return self.size_ratio * sum_bytes(self.parameters, self.density, updates)
