"""`Masters`: the masters of a daemon, one for each run, and what becomes of one that fails.

A master stays when its run is over, and serves the next one of that name. It is replaced when its
place is needed for a run of another name, or when it has raised an error.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from gradwire_protocol import Connection, GradwireError
from gradwire_protocol.messages.admission import RefusalCode, Refuse
from gradwire_protocol.messages.kinds import EndCode
from gradwire_server.config import MasterConfig
from gradwire_server.master.master import Master
from gradwire_server.master.reception import RUN_DEFAULT
from gradwire_server.metrics import RunMetrics, ServerMetrics
from gradwire_server.runs.background import Background
from gradwire_server.state.finished_runs import FinishedRuns
from gradwire_server.state.lobby import Lobby
from gradwire_server.state.run import Run
from gradwire_server.state.runs_over import RunsOver
from gradwire_server.state.totals import Totals

logger = logging.getLogger("gradwire.master")

T = TypeVar("T")

INTERNAL_ERROR: Final = "an internal error of the master, whose log has it; its other runs go on"


@dataclass(slots=True, eq=False)
class Served:
    """A run, and its master."""

    master: Master = field(init=False)
    name: str | None
    """None until a worker has joined."""
    drained: bool = False


class Masters:
    """Masters by the names of their runs.

    Parameters
    ----------
    resumed : sequence of Run
    on_drained, on_failed : callable
        See `Runs`.
    """

    def __init__(
        self,
        config: MasterConfig,
        metrics: ServerMetrics,
        background: Background,
        *,
        resumed: Sequence[Run],
        on_drained: Callable[[str], None],
        on_failed: Callable[[str, Exception], None] | None,
    ) -> None:
        self.now = 0.0
        """Time of the event that is being handled."""
        self.begun_at: float | None = None
        """When the daemon was started."""
        self.stopping: str | None = None
        """Why the daemon is about to end; None while it is not."""
        self.draining = False
        """Whether an operator has ordered that nobody is let in any more."""
        self.lobby: Final = Lobby(config.join_timeout_seconds)
        self.by_connection: Final[WeakKeyDictionary[Connection, Served]] = WeakKeyDictionary()
        """The master that a connection was handed to. Who closes it need not remove it here."""
        self._config = config
        self._metrics = metrics
        self._background = background
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._totals = Totals()
        metrics.runs.set_function(self._totals.runs)
        self._finished_runs = FinishedRuns()
        self.runs_over: Final = RunsOver()
        self._served: list[Served] = []
        for run in resumed or (None,):
            self._add(None if run is None else run.name, run)

    def __iter__(self) -> Iterator[Served]:
        """Iterate over all of them, in the order they began."""
        return iter(tuple(self._served))

    @property
    def first(self) -> Served:
        """The first one: the only one where there is a standby."""
        return self._served[0]

    @property
    def has_one_run(self) -> bool:
        """Whether there can be only one run, as there is a standby, or this is one."""
        return self.first.master.terms.other is not None

    @property
    def in_progress(self) -> dict[str, Master]:
        """The masters of the runs in progress, by name."""
        masters = (served.master for served in self._served)
        return {each.run.name: each for each in masters if each.run is not None}

    @property
    def list_of_runs(self) -> str:
        """The names of the runs in progress, for messages."""
        return f"runs in progress: {', '.join(sorted(map(repr, self.in_progress))) or 'none'}"

    def named(self, name: str) -> Served | None:
        """Return the one with this name."""
        return next((served for served in self._served if served.name == name), None)

    def place_for(self, name: str) -> Served | Refuse:
        """Return where a run of a new name can be served, or the refusal."""
        if self.first.name is None:
            self.first.name = name
            return self.first
        used = sum(not served.master.is_over for served in self._served)
        if used >= self._config.runs_max and not self._give_up_one(name):
            return Refuse(
                RefusalCode.RUN_FULL,
                f"{self.list_of_runs}, and {used} are the limit: start the master with a larger "
                "--runs-max, or end a run: `gradwire operate end-run --run NAME`",
            )
        over = [served for served in self._served if served.master.is_over]
        if len(self._served) < self._config.runs_max or not over:
            return self._add(name)
        self._replace(over[0], name)
        return over[0]

    def guard(self, served: Served, act: Callable[..., T], *arguments: object) -> T | None:
        """Call a method of a master; what it raises ends the service of its run alone.

        Returns what the method does, or None after an error. A `GradwireError` says what is wrong
        with a request, and is raised.
        """
        try:
            return act(*arguments)
        except GradwireError:
            raise
        except Exception as error:
            if self._on_failed is None or self.has_one_run:
                raise
            self._fail(served)
            self._on_failed(served.name or RUN_DEFAULT, error)
            return None

    def conclude(self) -> None:
        """Name the first one as its run, if the worker that began it named none."""
        if self.first.name is None and self.first.master.run is not None:
            self.first.name = self.first.master.run.name

    # Private.

    def _give_up_one(self, name: str) -> bool:
        """End a run that has no worker, and none that may come back; return if there is one."""
        for served in self._served:
            if served.master.is_abandoned:
                reason = f"run {served.name!r} has no worker any more, and makes room for {name!r}"
                logger.warning("%s", reason)
                self.guard(served, served.master.end_run, reason, self.now)
                return True
        return False

    def _add(self, name: str | None, run: Run | None = None) -> Served:
        served = Served(name)
        self._begin(served, run)
        self._served.append(served)
        return served

    def _replace(self, served: Served, name: str | None) -> None:
        """Let a new master begin in the place of one that is over, or has failed."""
        state = served.master.state
        self._totals.remove(state)
        state.decoder.close()
        served.name = name
        self._begin(served)

    def _begin(self, served: Served, run: Run | None = None) -> None:
        def hand_on(handle: Callable[[Master, float], None], now: float) -> None:
            if served.master is master:  # else it was replaced meanwhile
                self.now = now
                self.guard(served, handle, master, now)
                self.conclude()

        served.master = master = Master(
            self._config,
            RunMetrics(),
            self._background.decoder(partial(hand_on, Master.handle_decoded)),
            lobby=self.lobby,
            on_drained=partial(self._note_drained, served),
            run=run,
            writer=self._background.writer(partial(hand_on, Master.handle_progress)),
            totals=self._totals,
            finished_runs=self._finished_runs,
            runs_over=self.runs_over,
        )
        served.drained = self.stopping is not None
        master.state.stopping = self.stopping
        master.state.draining = self.draining
        if self.begun_at is not None:
            master.begin(self.begun_at)

    def _fail(self, served: Served) -> None:
        """Close all connections of a run, and let a new master serve it."""
        self._metrics.runs_failed.inc()
        state = served.master.state
        members = [member.link.connection for member in state.roster]
        for connection in [*self.lobby.at(state), *members]:
            self.lobby.end(connection, EndCode.STOPPED, INTERNAL_ERROR, self.now)
        self._replace(served, served.name)
        served.master.state.new_run = False  # its workers are to come back
        served.master.begin(self.now)
        if self.stopping is not None:
            self._note_drained(served, self.stopping)

    def _note_drained(self, served: Served, reason: str) -> None:
        served.drained = True
        if all(each.drained for each in self._served):
            self._on_drained(reason)
