"""`BoundedWorker`: a `SimulatedWorker` whose staleness is bounded, and that counts its steps."""

from typing import TYPE_CHECKING

from support.simulated_bound import TRY_AGAIN_SECONDS, SimulatedBound
from support.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from support.training import SimulatedRun


class BoundedWorker(SimulatedWorker):
    """Makes a step every `interval` seconds, but waits for others that are too far behind."""

    bound: SimulatedBound

    def __init__(self, run: "SimulatedRun", name: str, feedback: str) -> None:
        super().__init__(run, name, feedback, run.credentials(name))
        self.interval = 0.05
        self.trains_on = True
        self.steps = 0

    def begin(self, bound: int, timeout_seconds: float) -> None:
        """Begin to train, now that it is live."""
        self.bound = SimulatedBound(self, bound, timeout_seconds)
        self.tick()

    def tick(self) -> None:
        """Make a step if it is time for one, or wait."""
        network = self.run.network
        if self.is_gone or not self.trains_on:
            return
        if network.now < self.host.asleep_until:
            network.at(self.host.asleep_until, self.tick)
            return
        if not self.bound.may_step():
            network.after(TRY_AGAIN_SECONDS, self.tick)
            return
        self.clock += 1
        self.steps += 1
        self.step()
        network.after(self.interval * network.random.uniform(0.5, 1.5), self.tick)
