"""`Runs`: the runs of one daemon, each served by a `Master` of its own.

A connection waits in the lobby. A worker that asks to join is handed to the master of the run that
it names, which lets it leave the lobby as a member. Orders come over HTTP.
What one master does wrong ends the service of its run alone: all connections of the run are closed,
and a new master begins, to which its workers come back as to a daemon that was started again.

::

                  ┌─▶ Newcomers (the lobby)
    events ──▶ Runs ──▶ Master of run A ◀── Orders ◀── HTTP
                  └───▶ Master of run B

Limits hold for all runs together: workers, parameters, the memory of sums and of the log (see
`Totals`). A master that has a standby, or is one, serves one run.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gradwire_protocol import Connection, Disconnected, Event, Keyring, UsageError
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.kinds import EndCode
from gradwire_server.config import MasterConfig
from gradwire_server.master.master import Master
from gradwire_server.master.reception import RUN_DEFAULT
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.background import Background
from gradwire_server.runs.masters import INTERNAL_ERROR, Masters
from gradwire_server.runs.newcomers import Newcomers
from gradwire_server.runs.orders import Order, Orders
from gradwire_server.runs.trunks import Trunks
from gradwire_server.state.run import Run
from gradwire_server.state.runs_over import RunsOver


class Runs:
    """Serves several runs at once.

    Parameters
    ----------
    metrics : ServerMetrics
        Of the daemon; each run has metrics of its own.
    background : Background, optional
    resumed : sequence of Run
        Runs that go on from checkpoints.
    on_denied : callable
        Called with all names denied by order when they have changed. The owner has to close the
        connections of these names, and to accept no new ones.
    on_drained : callable
        Called with the reason when all masters are drained, and again until they stop.
    on_failed : callable, optional
        Called with the name of a run and the error that its master has raised, which ends only the
        service of that run. Without it, such an error is raised.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: ServerMetrics,
        background: Background | None = None,
        *,
        resumed: Sequence[Run] = (),
        on_denied: Callable[[frozenset[str]], None] = lambda names: None,
        on_drained: Callable[[str], None] = lambda reason: None,
        on_failed: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self.config = config
        self.metrics = metrics
        self._on_drained = on_drained
        self._masters = Masters(
            config,
            metrics,
            background or Background(),
            resumed=resumed,
            on_drained=on_drained,
            on_failed=on_failed,
        )
        self._newcomers = Newcomers(config, metrics, self._masters)
        self._trunks = Trunks(config, self._masters)
        metrics.relays.set_function(lambda: self.relays)
        self._orders = Orders(
            lambda: self._masters.in_progress, self.over, self._set_draining, on_denied
        )

    # Input.

    def begin(self, now: float) -> None:
        """Note that the daemon has just been started; see `Master.begin`."""
        self._masters.begun_at = now
        for served in self._masters:
            served.master.begin(now)

    def order(self, who: str, order: Order, now: float) -> str:
        """Carry out an order of whom the log names so; return what it has come to.

        What a master raises ends the service of its run alone.

        Raises
        ------
        UsageError
            If it cannot be carried out.
        """
        masters, execute = self._masters, self._orders.execute
        masters.now = now
        name = self._orders.run_of(order)
        served = None if name is None else masters.named(name)
        if served is None:
            done: str | None = execute(who, order, now)
        else:
            done = masters.guard(served, execute, who, order, now)
        self._conclude()
        if done is None:
            raise UsageError(INTERNAL_ERROR)
        self.metrics.orders.inc()
        return done

    def set_keyring(self, keyring: Keyring, now: float) -> None:
        """Let in only workers of a keyring, also those behind relays."""
        self._masters.now = now
        for branch, end in self._trunks.admit(keyring, now):
            self.handle_event(branch, end, now)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on an event of a connection."""
        masters = self._masters
        masters.now = now
        if self._trunks.serves(connection, event):
            for branch, of_branch in self._trunks.handle_event(connection, event, now):
                self.handle_event(branch, of_branch, now)
            self._conclude()
            return
        if isinstance(event, Disconnected):
            masters.lobby.leave(connection)
        served = masters.by_connection.get(connection)
        if served is None or connection in masters.lobby:
            self._newcomers.handle_event(connection, event)
        else:
            masters.guard(served, served.master.handle_event, connection, event, now)
        self._conclude()

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        masters = self._masters
        masters.now = now
        masters.lobby.handle_timer(now)
        for branch, end in self._trunks.pop_lost(now):
            self.handle_event(branch, end, now)
        for served in masters:
            masters.guard(served, served.master.handle_timer, now)
        self._conclude()

    def drain(self, reason: str, now: float) -> None:
        """Let nobody in any more, and deliver all messages under way; see `Master.drain`."""
        masters = self._masters
        masters.now, masters.stopping = now, reason
        for served in masters:
            masters.guard(served, served.master.drain, reason, now)

    def stop(self, reason: str, now: float, *, broken: bool = False) -> None:
        """Close all connections with the reason; see `Master.stop`."""
        masters = self._masters
        masters.now = now
        # The code sends workers to the other master, where there is one.
        code = EndCode.STEPPED_DOWN if masters.has_one_run else EndCode.STOPPED
        masters.lobby.close(reason, now, code)
        for served in masters:
            masters.guard(served, partial(served.master.stop, broken=broken), reason, now)
        self._trunks.stop(reason)

    def close(self) -> None:
        """Drop the updates that are not decoded, and end the threads for that."""
        for served in self._masters:
            served.master.state.decoder.close()

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        masters = self._masters
        deadlines = [masters.guard(served, served.master.next_timer) for served in masters]
        deadlines += [masters.lobby.next_timer(), self._trunks.next_timer()]
        return earliest(deadlines)

    def status(self) -> dict[str, Any]:
        """Return the status of all runs, as values that JSON has."""
        return {
            "runs": [master.status() for master in self._masters.in_progress.values()],
            "draining": self.draining,
            "denied": sorted(self._orders.denied),
            "master": self._masters.first.master.terms.status(),
        }

    @property
    def draining(self) -> bool:
        """Whether an operator has ordered that nobody is let in any more."""
        return self._orders.draining

    @property
    def first(self) -> Master:
        """The first master: the only one where there is a standby."""
        return self._masters.first.master

    @property
    def in_progress(self) -> dict[str, Master]:
        """The masters of the runs in progress, by name."""
        return self._masters.in_progress

    @property
    def over(self) -> RunsOver:
        """The last ones that are over."""
        return self._masters.runs_over

    @property
    def masters(self) -> Iterator[tuple[str, Master]]:
        """Iterate over the names of runs, also of some that are over, and their masters."""
        for served in self._masters:
            yield served.name or self.config.run or RUN_DEFAULT, served.master

    @property
    def relays(self) -> int:
        """How many relays are connected, those behind others included."""
        return len(self._trunks)

    @property
    def writes(self) -> bool:
        """Whether a checkpoint is being written, or is due."""
        return any(served.master.checkpoints.busy for served in self._masters)

    def _conclude(self) -> None:
        """Do what is due after every event."""
        self._masters.conclude()
        self._trunks.conclude()
        if self._orders.draining and not any(each.master.roster.workers for each in self._masters):
            self._on_drained("the master was stopped by an operator, who drained it")

    def _set_draining(self, draining: bool) -> None:
        self._masters.draining = draining
        for served in self._masters:
            served.master.state.draining = draining
