"""`BoundedWorker`: a `SimulatedWorker` whose staleness is bounded, and that counts its steps."""

from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.features.staleness_bound import (
    FIRST_PATIENCE_SECONDS,
    AutomaticBound,
    StalenessBound,
)
from gradwire.settings.settings import Settings
from gradwire.settings.training import StalenessBound as Bound
from support.leads import Looks
from support.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from support.training import SimulatedRun


def set_timeout(bound: StalenessBound, seconds: float) -> None:
    """Let a worker that has made no step yet wait for so long, at most, for one that makes none."""
    if isinstance(bound, AutomaticBound):
        bound._timeout_max = seconds
        seconds = min(seconds, FIRST_PATIENCE_SECONDS)
    bound.lags.timeout_seconds = seconds


class BoundedWorker(SimulatedWorker):
    """Makes a step every `interval` seconds, but waits for others that are too far behind."""

    bound: StalenessBound

    def __init__(
        self, run: "SimulatedRun", name: str, feedback: str, *, bound: Bound, timeout_seconds: float
    ) -> None:
        self._bound = bound
        self._timeout = timeout_seconds
        self.looks = Looks()
        self.interval = 0.05
        self.trains_on = True
        self.steps = 0
        self.longest_wait = 0.0
        self._waits_since: float | None = None
        super().__init__(run, name, feedback, run.credentials(name))

    def settings(self, feedback: str) -> Settings:
        return replace(
            super().settings(feedback),
            staleness_bound=self._bound,
        )

    def on_live(self) -> None:
        [self.bound] = [
            feature for feature in self.participant.features if isinstance(feature, StalenessBound)
        ]
        set_timeout(self.bound, self._timeout)
        self.looks.watch(self.bound, lambda rank: 0)
        self.run.network.after(0, self.tick)

    def tick(self) -> None:
        """Make a step if it is time for one."""
        network = self.run.network
        if self.is_gone or not self.trains_on:
            return
        if network.now < self.host.asleep_until:
            network.at(self.host.asleep_until, self.tick)
            return
        if not self.is_waiting:
            self.steps += 1
            self.step()
        network.after(self.interval * network.random.uniform(0.5, 1.5), self.tick)

    def go_on(self) -> None:
        super().go_on()
        if self.is_waiting and self.live:
            if self._waits_since is None:
                self._waits_since = self.now
        elif self._waits_since is not None:
            self.longest_wait = max(self.longest_wait, self.now - self._waits_since)
            self._waits_since = None
