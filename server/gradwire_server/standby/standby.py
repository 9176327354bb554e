"""`Standby`: a master that follows another one, and takes its place when that is lost.

It dials the primary, and keeps a copy of its run (see `following`). Workers that have lost the
primary connect to it. While the standby itself is still connected to the primary, it sends them
back; else they wait here for some seconds, until enough have come to take over, or until the
primary is back. `terms` explains why the standby is never in charge together with the primary.

::

               primary dialled               more than half of the voters here
    FOLLOWING ◀───────────────▶ LOST ────────────────────────────▶ ASKING ──▶ in charge
                                 ▲   promises of too few in time      │
                                 └────────────────────────────────────┘

In charge, it is a master like any other, and no longer dials. The primary, when it is started
again, is not in charge until its standby is restarted, and follows it.

Its connection to the primary goes over UDP; workers reach it as they do any master.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    GradwireError,
    InvalidMessageError,
    MessageReceived,
)
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.admission import (
    Follow,
    Join,
    Promise,
    Refuse,
    Roster,
    Voters,
    Welcome,
)
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import EntriesReceived, Link, Message
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import Finished, Stable
from gradwire_server.runs.runs import Runs
from gradwire_server.standby.following import Following

logger = logging.getLogger("gradwire.standby")

DIAL_SECONDS: Final = 1.0
"""Least time between the beginnings of two attempts to reach the primary."""

WAIT_SECONDS: Final = 5.0
"""How long a worker waits here before it is sent back to the primary. In that time, other workers
that have lost the primary have tried it once and come here."""

ASK_SECONDS: Final = 5.0
"""How long promises may take: some round trips, and retransmissions."""


@dataclass(slots=True)
class _Caller:
    """A worker that has lost the primary, and waits here."""

    link: Link
    join: Join
    until: float
    """When it is sent back."""


class Standby:
    """Follows the primary on behalf of a master that is not in charge, and lets it take over.

    Parameters
    ----------
    runs : Runs
        Of its daemon; a master that has a standby, or is one, serves one run.
    dial : callable
        Given the time, begins a connection to the primary, or raises `GradwireError`.
    """

    def __init__(self, runs: Runs, dial: Callable[[float], Connection], now: float) -> None:
        self._runs = runs
        self._master = master = runs.first
        self._dial = dial
        self._up: Link | None = None
        self._follows = False
        """Whether FOLLOW was sent to the primary over the present connection."""
        self.following = Following(self._master.config.relay)
        """The copy of the primary's run."""
        self._dial_at: float | None = now
        self._lost_at = now
        """When the primary's last word came, as far as that is known."""
        self._primary_term = 0
        self.voters: frozenset[bytes] = frozenset()
        """Worker ids whose promises count, as the primary has sent them."""
        self._callers: dict[Connection, _Caller] = {}
        self._asking: float | None = None
        """Deadline for promises; None while no worker was asked."""
        self._promised: set[bytes] = set()
        self._complaint = ""
        """The last complaint about the primary, so that it is logged once."""
        master.reception.on_early_join = self._add_caller
        master.reception.on_promise = self._receive_promise

    @property
    def up(self) -> Connection | None:
        """The connection to the primary, or the one that is to become it."""
        return None if self._up is None else self._up.connection

    # Input.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on an event of a connection."""
        if self._up is not None and connection is self._up.connection:
            self._from_primary(self._up, event, now)
            self._master.handle_progress(now)
        else:
            self._runs.handle_event(connection, event, now)
        self._conclude(now)

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        self._runs.handle_timer(now)
        self._conclude(now)

    def stop(self, reason: str, now: float, *, broken: bool = False) -> None:
        """Close all connections, also the one to the primary; see `Runs.stop`."""
        if self._up is not None:
            self._up.connection.close(EndCode.STOPPED, reason, now)
        self._up = self._dial_at = None
        self._runs.stop(reason, now, broken=broken)

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        deadlines = [self._runs.next_timer()]
        if not self._master.terms.in_charge:
            deadlines += [self._dial_at, self._asking, self._takeover_at]
            deadlines += [caller.until for caller in self._callers.values()]
        return earliest(deadlines)

    # The primary.

    def _from_primary(self, up: Link, event: Event, now: float) -> None:
        match event:
            case Connected():
                # While it follows the primary, it must have no voters and cannot take over.
                self._follows = True
                self.voters = frozenset()
                self.following = Following(self._master.config.relay)
                up.send(Follow(self._master.terms.term, None))
                logger.info("following the master at %s", up.connection.address)
                self._send_back_callers(now)
            case MessageReceived():
                try:
                    for message in up.receive(event):
                        self._receive(up, message, now)
                except InvalidMessageError as error:
                    self._complain(f"the primary sent an invalid message: {error}")
                    up.connection.close(CloseCode.INVALID_MESSAGE, str(error), now)
                    self._lose(now)
            case Disconnected():
                if self._follows:
                    logger.warning("the primary is lost: %s", event.reason)
                    if event.code == EndCode.STEPPED_DOWN:  # it will not be back
                        self._lost_at = now - self._master.config.takeover_seconds
                        self._follows = False
                self._lose(now)

    def _lose(self, now: float) -> None:
        if self._follows:
            heard = None if self._up is None else self._up.connection.last_heard
            self._lost_at = now if heard is None else heard
        self._follows = False
        self._up = None
        if self._asking is None:
            self._dial_at = now + DIAL_SECONDS

    def _receive(self, up: Link, message: Message, now: float) -> None:
        following = self.following
        match message:
            case Welcome():
                following.begin(message, now)
                assert following.run is not None
                state = self._master.state
                state.end_run()
                state.serve(following.run)
            case Snapshot() | EntriesReceived():
                following.receive(message, now)
            case Voters():
                self.voters = frozenset(message.workers)
                self._primary_term = message.term
                self._master.terms.raise_to(message.term)
                up.send(Follow(self._master.terms.term, message.number))
            case Finished():
                if following.run is not None:
                    following.run.finished = True
            case Roster() | Stable():
                pass
            case Refuse():
                self._complain(f"the primary refuses: {message.reason}")
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from a primary")

    def _complain(self, what: str) -> None:
        if what != self._complaint:
            logger.error("%s", what)
        self._complaint = what

    # The workers.

    def _add_caller(self, link: Link, join: Join) -> None:
        """Let a worker wait that has lost the primary; refuse new workers.

        While the standby follows the primary, it refuses all workers.
        """
        master = self._master
        if self._follows or join.resume is None:
            master.reception.refuse(link.connection, join, master.terms.refusal())
            return
        if link.connection in self._callers:
            raise InvalidMessageError("Join for a second time")
        now = master.state.now
        self._callers[link.connection] = _Caller(link, join, now + WAIT_SECONDS)
        if self._asking is not None:
            link.send(Promise(self._primary_term + 1))

    def _receive_promise(self, link: Link, promise: Promise) -> None:
        caller = self._callers.get(link.connection)
        if caller is None or self._asking is None:
            return  # it was asked before the primary was found again
        if promise.term == self._primary_term + 1:
            self._promised.add(caller.join.worker_id)

    def _send_back_callers(self, now: float, *, all_of_them: bool = True) -> None:
        master = self._master
        master.state.now = now
        for connection, caller in list(self._callers.items()):
            if connection not in master.state.lobby:
                del self._callers[connection]
            elif all_of_them or now >= caller.until:
                del self._callers[connection]
                master.reception.refuse(connection, caller.join, master.terms.refusal())

    # Taking over.

    @property
    def _takeover_at(self) -> float | None:
        """When to take over; None while too few workers are here, or it follows the primary."""
        here = {caller.join.worker_id for caller in self._callers.values()}
        if self._follows or self._asking is not None or not self._is_majority(here):
            return None
        return self._lost_at + self._master.config.takeover_seconds

    def _is_majority(self, workers: set[bytes]) -> bool:
        return 2 * len(self.voters & workers) > len(self.voters)

    def _conclude(self, now: float) -> None:
        """Send workers back, take over, or dial the primary, whatever is due."""
        if self._master.terms.in_charge:
            return
        self._send_back_callers(now, all_of_them=False)
        if self._asking is not None:
            here = {caller.join.worker_id for caller in self._callers.values()}
            if self._is_majority(self._promised & here):
                self._take_over(now)
            elif now >= self._asking:
                logger.warning("too few workers promised to follow: dialling the primary again")
                self._asking = None
                self._promised.clear()
                self._dial_at = now
                self._send_back_callers(now)
        elif (takeover_at := self._takeover_at) is not None and now >= takeover_at:
            self._ask(now)
        if self._dial_at is not None and now >= self._dial_at:
            self._dial_at = None
            try:
                self._up = Link(self._dial(now))
            except GradwireError as error:
                self._complain(f"cannot reach the primary: {error}")
                self._dial_at = now + DIAL_SECONDS

    def _ask(self, now: float) -> None:
        """Ask the waiting workers to follow this master, and disconnect from the primary."""
        term = self._primary_term + 1
        logger.warning(
            "the primary is lost for %d workers of %d, too: asking them to follow in term %d",
            len(self._callers), len(self.voters), term,
        )  # fmt: skip
        if self._up is not None:
            self._up.connection.close(EndCode.ABORTED, "taking over", now)
        self._up = self._dial_at = None
        self._asking = now + ASK_SECONDS
        self._master.terms.raise_to(term)
        for caller in self._callers.values():
            caller.until = self._asking
            caller.link.send(Promise(term))

    def _take_over(self, now: float) -> None:
        """Take charge, and admit the waiting workers."""
        master, following = self._master, self.following
        state = master.state
        state.now = now
        self._asking = None
        master.terms.take_charge(self._primary_term + 1)
        run = state.run
        if run is not None and following.complete and run is following.run:
            run.awaits_workers = True  # as if it were from a checkpoint: its workers join next
            run.finished = False  # until they have said so again
        elif run is not None:
            state.end_run()
        callers, self._callers = self._callers, {}
        for connection, caller in callers.items():
            if connection in state.lobby:
                master.reception.join(caller.link, caller.join)
        master.handle_timer(now)
