"""`State`: the state that all parts of a master share, and messages to all members.

`master` receives events, `reception` handles connections that are not members yet, `departures`
removes members.
"""

import logging
from dataclasses import dataclass, field

from gradwire_protocol.messages.admission import Roster as RosterMessage
from gradwire_protocol.messages.link import Control
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import RunMetrics
from gradwire_server.series.journal import Happening, Journal
from gradwire_server.series.series import Series
from gradwire_server.state.finished_runs import FinishedRuns
from gradwire_server.state.leases import Leases
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.roster import Roster
from gradwire_server.state.run import Leadership, Run
from gradwire_server.state.runs_over import RunsOver
from gradwire_server.state.totals import Totals
from gradwire_server.updates.decoding import Decoder


@dataclass(slots=True, kw_only=True)
class State:
    """The run, its members, other connections, and the time."""

    config: MasterConfig
    metrics: RunMetrics
    decoder: Decoder
    lobby: Lobby
    roster: Roster = field(default_factory=Roster)
    leases: Leases
    run: Run | None = None
    """The run in progress."""
    ended_series: Series | None = None
    """What was logged in the last run, until another one begins."""
    journal: Journal = field(default_factory=Journal)
    """What has happened in it, and in the ones before."""
    totals: Totals = field(default_factory=Totals)
    """What it takes together with the other runs of its daemon."""
    finished_runs: FinishedRuns = field(default_factory=FinishedRuns)
    """Runs that have finished before it, at any master of its daemon."""
    runs_over: RunsOver = field(default_factory=RunsOver)
    """What people can still look at of runs of its daemon that are over."""
    began_after: int = 0
    """The number of the last entry in the journal before the run began."""
    leadership: Leadership
    new_run: bool
    """Whether workers of a run before the master's start are refused."""
    now: float = 0.0
    """Time of the event that is being handled."""
    expects_returns_until: float = 0.0
    """How long workers of a run before the master's start may return before new ones join."""
    stopping: str | None = None
    """Why the master is about to end; None while it is not."""
    draining: bool = False
    """Whether an operator has ordered that nobody is let in any more."""
    queues_grew: bool = False
    """Whether messages were queued since members were last checked for being too slow."""

    def note(
        self,
        kind: Happening,
        text: str,
        *,
        rank: int | None = None,
        level: int = logging.INFO,
        run: Run | None = None,
    ) -> None:
        """Note in the journal and in the log what has happened in a run, or in the present one."""
        of = run or self.run
        name = "" if of is None else of.name
        entry = self.journal.note(kind, text, run=name, at=self.now, rank=rank, level=level)
        if of is not None and of is not self.run:
            self.runs_over.add(of.series, entry)

    def tell_all(self, message: Control) -> None:
        """Send a message to all members."""
        packed = message.pack()
        for member in self.roster:
            member.link.send(message, packed)
        self.queues_grew = True

    def tell_roster(self) -> None:
        """Send the current roster to all members."""
        self.tell_all(RosterMessage(self.roster.peers()))

    def serve(self, run: Run) -> None:
        """Serve a run from now on."""
        if run.series is not self.ended_series:  # else it is the same run that goes on
            self.began_after = self.journal.last
        self.run, self.ended_series = run, None
        run.leadership, run.journal = self.leadership, self.journal
        run.relay.share(self.totals.runs, self.totals.sum_bytes)
        self.metrics.parameters.set(run.parameters)

    def end_run(self) -> None:
        """Forget the run and its leases; remember what was logged, and that it has finished."""
        if (run := self.run) is not None:
            run.relay.feeds.end()
            self.finished_runs.note(run)
            self.ended_series = run.series
            if run.is_over:
                self.runs_over.keep(run, self.journal.after(self.began_after), self.now)
        self.run = None
        self.leases.clear()
        self.metrics.parameters.set(0)

    def count_members(self) -> None:
        """Update the metrics after a member was added or removed."""
        observers = [each for each in self.roster if each.observes and not each.stands_by]
        self.metrics.workers.set(len(self.roster.workers))
        self.metrics.observers.set(len(observers))
