"""`State`: what the parts of a master have in common, and how it speaks to everyone.

`master` hears of events, `reception` deals with who does not take part yet, `departures` with who
takes part no more. Each decides for itself; what they decide about is here.
"""

from dataclasses import dataclass, field

from gradwire_protocol.messages.admission import Roster as RosterMessage
from gradwire_protocol.messages.link import Control
from gradwire_server.config import MasterConfig
from gradwire_server.metrics import ServerMetrics
from gradwire_server.state.finished_runs import FinishedRuns
from gradwire_server.state.leases import Leases
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.roster import Roster
from gradwire_server.state.run import Charge, Run
from gradwire_server.updates.decoding import Decoder


@dataclass(slots=True, kw_only=True)
class State:
    """The members of a run, the run, and the time."""

    config: MasterConfig
    metrics: ServerMetrics
    decoder: Decoder
    lobby: Lobby
    """Connections that take no part."""
    roster: Roster = field(default_factory=Roster)
    """The members."""
    leases: Leases
    """Ranks kept for workers that may return."""
    run: Run | None = None
    """The run in progress."""
    ended: FinishedRuns = field(default_factory=FinishedRuns)
    """Runs that were finished before it."""
    charge: Charge
    """Which term it is in."""
    now: float = 0.0
    """Time of the event that is being handled."""
    expects_until: float = 0.0
    """Until when workers are waited for that took part before this master was started."""
    stopping: str | None = None
    """Why the master is about to end; None while it is not."""
    queues_grew: bool = False
    """Whether so much may wait for somebody by now that he is too slow."""

    def tell_all(self, message: Control) -> None:
        """Send a message to everyone who takes part."""
        packed = message.pack()
        for member in self.roster:
            member.link.send(message, packed)
        self.queues_grew = True

    def tell_roster(self) -> None:
        """Tell everyone who takes part now."""
        self.tell_all(RosterMessage(self.roster.peers()))

    def end_run(self) -> None:
        """Forget the run, but for that it was finished, and who is expected back in it."""
        if self.run is not None:
            self.ended.note(self.run)
        self.run = None
        self.leases.clear()
        self.metrics.parameters.set(0)

    def count_members(self) -> None:
        """Bring the metrics up to date after somebody has come or gone."""
        observers = [each for each in self.roster if each.observes and not each.stands_by]
        self.metrics.workers.set(len(self.roster.workers))
        self.metrics.observers.set(len(observers))
