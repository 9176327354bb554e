"""`Trainee`: the process of a worker in a simulated history, and the `Machine` it runs on.

It is a `SimulatedWorker` that trains at a pace of its own, on a host that may be slow, asleep or
cut off, and says what happens to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gradwire.errors import GradwireError
from gradwire.features.staleness_bound import StalenessBound
from gradwire.settings.settings import Settings
from gradwire.worker.inbox import Rebase
from gradwire_protocol import Credentials
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.fields import covers
from support.bounded_worker import set_timeout
from support.leads import Looks
from support.simulated_worker import SimulatedWorker

if TYPE_CHECKING:
    from support.histories import History


@dataclass(eq=False)
class Machine:
    """Where one worker after the other runs: with one key, and one clock."""

    name: str
    processes: list["Trainee"] = field(default_factory=list)
    is_to_start: bool = False
    """Whether a process will be started there."""
    is_done: bool = False
    """Whether nothing is to be started there any more: its worker has left."""

    @property
    def process(self) -> "Trainee | None":
        """The process that is alive, if one is."""
        last = self.processes[-1] if self.processes else None
        return last if last is not None and not last.closed and last.host.alive else None


class Trainee(SimulatedWorker):
    """A worker that trains until it is told to stop."""

    def __init__(
        self, history: "History", machine: Machine, feedback: str, credentials: Credentials | None
    ) -> None:
        self.history = history
        self.machine = machine
        self.masters = [history.masters]
        """The masters it has taken part with: the how manieth ones."""
        self.bound: StalenessBound | None = None
        """Where the plan has one, and it is live."""
        self.looks = Looks()
        name = f"{machine.name}.{len(machine.processes)}"
        super().__init__(history, name, feedback, credentials)
        self.interval = history.plan.interval * history.random.uniform(0.5, 2.0)
        self.note("begins, %s feedback", feedback)
        self._tick_later()

    def note(self, what: str, *values: object) -> None:
        """Note what happens to it."""
        self.history.note(self.name, what, *values)

    @property
    def takes_part(self) -> bool:
        """Whether it is live and connected, as far as it knows."""
        return self.live and self.lost is None and not self.is_gone

    def received(self, rank: int) -> int:
        """Return the last update of a rank that it has."""
        if rank == self.rank:
            return self.worker.sequence
        return self.known.get(rank, 0)

    @property
    def known(self) -> Mapping[int, int]:
        """By rank: the last update that its replica has, or will have when it pulls."""
        log = self.worker.state.log
        return log.versions if log._before is None else log._before.versions

    @property
    def acknowledged(self) -> int:
        """The last of its updates up to which all were acknowledged."""
        return self.worker.state.own.delivered

    # What the training thread does.

    def tick(self) -> None:
        """Do one step, or only take what has come; unless its machine sleeps."""
        if self.is_gone:
            return
        network = self.run.network
        if network.now < self.host.asleep_until:
            network.at(self.host.asleep_until, self.tick)
            return
        if self.live:
            self.go_on()  # its clock may have jumped
            self.check_lead()
            if self.is_waiting:
                pass
            elif self.history.is_training:
                self.step()
            else:
                self.pull()
        self._tick_later()

    def check_lead(self) -> None:
        """Check that it begins its next step no earlier than it may, and waits not too long."""
        if self.bound is not None and self.history.leads is not None:
            self.history.leads.check(self, self.bound, self.looks, self.history.live)

    def step(self) -> None:
        before = self.sent
        super().step()
        if self.sent > before:
            self.note("sends %d to %d", self.worker.sequence - self.sent + before + 1,
                      self.worker.sequence)  # fmt: skip

    def pull(self) -> None:
        self.check_inboxes()
        super().pull()

    def go_on(self) -> None:
        if not self.live:
            super().go_on()
            return
        before = dict(self.versions)
        super().go_on()
        if self.versions != before:
            news = {r: s for r, s in self.versions.items() if s != before.get(r, 0)}
            self.note("applies up to %s", news)
        if self.bound is not None and self.is_waiting and self.bound.held_by:
            self.note("waits for %s", dict(self.bound.held_by))

    def check_inboxes(self) -> None:
        """Check that what waits for it is bounded."""
        for inbox in (self.membership.inbox, self.membership._resync):
            if inbox is not None:
                self.history.bounds.check_inbox(inbox)

    def on_rebased(self, versions: Mapping[int, int]) -> None:
        for rank, sequence in self.versions.items():
            least = versions.get(rank, 0)
            if rank != self.rank and least < sequence:
                self.note("gives back %d/%d to %d", rank, least + 1, sequence)

    def finish(self) -> None:
        self.note("finishes")
        self.bound = None
        super().finish()

    def is_settled(self, versions: Mapping[int, int]) -> bool:
        """Return whether it has all that there is, and nobody lacks anything of it."""
        if not self.takes_part or self.run.network.now < self.host.asleep_until:
            return False
        self.pull()
        return (
            versions.get(self.rank, 0) == self.worker.sequence == self.versions[self.rank]
            and covers(self.versions, versions)
            and not len(self.worker.own_updates)
        )

    # What the network thread hears.

    def on_welcome(self, welcome: Welcome) -> None:
        """Do nothing but note it: whose parameters it is in the end, the master decides."""
        self.note("is rank %d%s", welcome.rank, ", and first" if welcome.founder else "")

    def on_live(self) -> None:
        self.masters = [self.history.masters]
        self.participant.offline_steps_max = self.history.plan.offline_steps_max
        self.note("is live with %s", dict(self.versions))
        for feature in self.participant.features:
            if isinstance(feature, StalenessBound):
                self.bound = feature
                set_timeout(feature, self.history.plan.staleness_timeout_seconds)
                self.looks.watch(feature, self.received)

    def on_lost(self, reason: str) -> None:
        self.note("has lost its master: %s", reason)

    def on_replica_wanted(self) -> None:
        self.note("is asked for its replica")
        if self.leaving:  # a session that leaves does nothing else
            super().on_replica_wanted()

    def on_resync(self, position: int) -> None:
        self.note("will get another replica, at position %d", position)

    def on_resumed(self, rebase: Rebase | None) -> None:
        self.masters.append(self.history.masters)
        news = "" if rebase is None else f", with blocks {sorted(rebase.values)} of another replica"
        self.note("is back%s", news)

    def on_finished(self, versions: Mapping[int, int]) -> None:
        self.note("hears that all have finished, with %s", dict(versions))

    def on_closed(self, error: GradwireError | None) -> None:
        self.note("is closed: %s", "as it wanted" if error is None else error)
        self.history.on_closed(self)

    def settings(self, feedback: str) -> Settings:
        plan = self.history.plan
        return replace(
            super().settings(feedback),
            staleness_bound=plan.staleness_bound,
            **plan.settings,
        )

    # Private.

    def _tick_later(self) -> None:
        wait = self.interval * self.run.network.random.uniform(0.2, 2.0)
        self.run.network.after(wait + self.host.slowness, self.tick)
