"""`RelayNode`: a relay, between workers and a master, or another relay.

It dials its parent, and lets workers in as long as it is connected to that. What they say is passed
on; what the master says to one of them is, too. The log comes once, and goes to all who are handed
over to it. Everything else is for the master to decide, and nothing here is missed when it is lost:
workers dial another relay or the master, say up to where they have the log, and go on.

::

    children ──▶ Child ──▶ BRANCH ──▶ parent
             ◀────────────  BRANCH ◀──
             ◀── FanOut ◀── ENTRIES ◀──

A relay that has lost its parent sends its workers away: they may reach the master by another way.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Event,
    GradwireError,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
)
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.admission import RefusalCode, Refuse
from gradwire_protocol.messages.kinds import LOG_STREAM, EndCode
from gradwire_protocol.messages.link import EntriesReceived, Link, Message
from gradwire_protocol.messages.relays import (
    CLOSED,
    MESSAGE,
    RECEIPTS_MAX,
    Branch,
    Closed,
    Elsewhere,
    Fed,
    Feed,
    Receipts,
    Returned,
    Trunk,
    Unfed,
    passes,
)
from gradwire_protocol.messages.updates import Stopping
from gradwire_server.config import MasterConfig
from gradwire_server.log.cursor import Numbers
from gradwire_server.relaying.child import Child, priority_of
from gradwire_server.relaying.fan_out import FanOut
from gradwire_server.relaying.parents import Parents

logger = logging.getLogger("gradwire.relay")

DIAL_SECONDS: Final = 1.0
"""Least time between the beginnings of two attempts to reach the parent."""

NUMBERS_SPARE: Final = 2**20
"""Between the numbers of one feed and those of the next: so many messages of the first may be under
way from another relay, and are told apart."""


class RelayNode:
    """A relay without sockets.

    Parameters
    ----------
    config : MasterConfig
        Its limits, and the settings of connections.
    parents : sequence of str
        Where its parent can be reached, in the order to try.
    dial : callable
        Given an address and the time, begins a connection, or raises `GradwireError`.
    relay_id : bytes
        Random.
    now : float
    tells : bool
        Whether workers are told of the parents, to dial them when the relay is lost.
    """

    def __init__(
        self,
        config: MasterConfig,
        parents: Sequence[str],
        dial: Callable[[str, float], Connection],
        relay_id: bytes,
        now: float,
        *,
        tells: bool = True,
    ) -> None:
        self._config = config
        self._relay_id = relay_id
        self._parents = Parents(parents, tells=tells)
        self._dial = dial
        self._parent: Link | None = None
        self._window_bytes: int | None = None
        """What the parent keeps of one child; None while it has not said so."""
        self._dial_at: float | None = now
        self._children: dict[Connection, Child] = {}
        self._by_number: dict[int, Child] = {}
        self._refused: dict[Connection, int] = {}
        """Connections without a parent for them, and the number of what they were told."""
        self._last_number = 0
        self._numbers = Numbers()
        self._fan_out: FanOut | None = None
        self._next_of_log = 0
        """The number after the last one in the stream of the log."""
        self._receipts: deque[tuple[int, int, int]] = deque()
        self._is_due = False
        self._parent_stops = False
        self._complaint = ""
        """The last complaint about the parent, so that it is logged once."""
        self._now = now
        self.dropped = 0
        """Messages for children that were gone."""

    @property
    def up(self) -> Connection | None:
        """The connection to the parent, or the one that is to become it."""
        return None if self._parent is None else self._parent.connection

    @property
    def is_open(self) -> bool:
        """Whether workers are let in."""
        return self._window_bytes is not None

    @property
    def children(self) -> int:
        """How many workers and relays are connected."""
        return len(self._children)

    @property
    def feeds(self) -> int:
        """How many of them are sent the log from here."""
        return 0 if self._fan_out is None else len(self._fan_out)

    # Input.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act on an event of a connection."""
        self._now = now
        if self._parent is not None and connection is self._parent.connection:
            self._from_parent(self._parent, event)
        else:
            self._from_child(connection, event)

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`, and send what is due."""
        self._now = now
        self._pass_on_log()
        if self._dial_at is not None and now >= self._dial_at:
            self._dial_parent()

    def stop(self, reason: str, now: float) -> None:
        """Close all connections: the children look for another way."""
        self._now = now
        self._send_away(EndCode.STEPPED_DOWN, reason)
        if self._parent is not None:
            self._parent.connection.close(EndCode.STOPPED, reason, now)
        self._parent = self._dial_at = self._window_bytes = self._fan_out = None

    # Output.

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        fan_out = self._fan_out
        is_due = self._is_due or (fan_out is not None and fan_out.is_due)
        # When all is handled that has come in: so what has come together is passed on together.
        due = self._now if is_due else None
        later = () if fan_out is None else fan_out.deadlines(self._config.slow_seconds)
        return earliest((self._dial_at, due, *later))

    # The parent.

    def _dial_parent(self) -> None:
        address, self._dial_at = self._parents.next(), None
        try:
            self._parent = Link(self._dial(address, self._now))
        except GradwireError as error:
            self._complain(f"cannot reach {address}: {error}")
            self._dial_at = self._now + DIAL_SECONDS

    def _from_parent(self, parent: Link, event: Event) -> None:
        match event:
            case Connected():
                parent.send(Trunk(relay_id=self._relay_id))
            case MessageReceived():
                try:
                    for message in parent.receive(event):
                        self._receive(parent, message)
                except InvalidMessageError as error:
                    self._complain(f"the parent sent an invalid message: {error}")
                    parent.connection.close(CloseCode.INVALID_MESSAGE, str(error), self._now)
                    self._lose_parent(EndCode.STEPPED_DOWN, str(error))
            case Disconnected():
                stops = event.by_peer and event.code == EndCode.STOPPED
                self._complain(f"no connection to the parent: {event.reason}")
                self._lose_parent(EndCode.STOPPED if stops else EndCode.STEPPED_DOWN, event.reason)

    def _lose_parent(self, code: EndCode, reason: str) -> None:
        self._parent = self._window_bytes = self._fan_out = None
        self._parent_stops = False
        self._receipts.clear()
        self._dial_at = self._now + DIAL_SECONDS
        self._send_away(code, f"the relay has lost its parent: {reason}")

    def _send_away(self, code: EndCode, reason: str) -> None:
        for connection in [*self._children, *self._refused]:
            connection.close(code, reason, self._now)
        for child in self._children.values():
            child.drop()
            child.end(code, reason, by_peer=False)
        self._children.clear()
        self._by_number.clear()
        self._refused.clear()

    def _receive(self, parent: Link, message: Message) -> None:
        match message:
            case Trunk():
                self._begin(message)
            case Branch():
                self._receive_branch(message)
            case Returned():
                if message.branch in self._by_number:
                    self._by_number[message.branch].give_back(message.charge)
                    self._forget_if_told(message.branch)
            case Feed() | Fed() | EntriesReceived():
                self._receive_of_log(parent, message)
            case Elsewhere():
                self._parents.learn(message.masters)
            case Stopping():
                self._parent_stops = True
                self._close_if_unused()
            case Refuse():
                self._complain(f"the parent refuses: {message.reason}")
            case _:
                raise InvalidMessageError(f"{type(message).__name__} from a parent")

    def _begin(self, trunk: Trunk) -> None:
        if self._window_bytes is not None or not trunk.window_bytes:
            raise InvalidMessageError("Trunk for a second time, or without a window")
        self._window_bytes, self._complaint = trunk.window_bytes, ""
        self._last_number = self._next_of_log = 0
        logger.info("relaying for the master at %s", self._parents.dialled)

    def _receive_branch(self, message: Branch) -> None:
        child = self._by_number.get(message.branch)
        if child is None:
            self.dropped += 1
        elif message.act == CLOSED:
            closed = Closed.parse(message.body)
            child.connection.close(closed.code, closed.reason, self._now)
            child.drop()
            self._lose_child(child, closed.code, closed.reason, by_peer=False)
        elif message.act == MESSAGE and message.body:
            child.connection.send(
                message.stream,
                message.number,
                message.kind,
                message.body,
                priority_of(message.kind),
            )
        else:
            raise InvalidMessageError(f"act {message.act} from a parent")

    def _receive_of_log(self, parent: Link, message: Feed | Fed | EntriesReceived) -> None:
        fan_out = self._fan_out
        if isinstance(message, Feed):
            first = self._next_of_log + NUMBERS_SPARE
            self._fan_out = FanOut(message, first, self._numbers, self._config.relay)
            self._is_due = True
        elif fan_out is None:
            raise InvalidMessageError(f"{type(message).__name__} without a Feed")
        elif isinstance(message, Fed):
            if message.feed != fan_out.number:
                raise InvalidMessageError(f"Fed of feed {message.feed}, not {fan_out.number}")
            fan_out.add(self._by_number.get(message.branch), message)
        elif (last := fan_out.receive(message, self._now)) is not None:
            self._next_of_log = last + 1
            parent.connection.skip_to(LOG_STREAM, self._next_of_log)

    # The children.

    def _from_child(self, connection: Connection, event: Event) -> None:
        child = self._children.get(connection)
        match event:
            case Connected():
                self._enter(connection)
            case MessageReceived() if child is None:
                connection.release(event.charge)
            case MessageReceived() if child is not None and passes(event.kind, event.message.total):
                child.pass_on(event)
            case MessageReceived() if child is not None:
                reason = f"a message of {event.message.total} bytes, which no relay can pass on"
                connection.close(CloseCode.INVALID_MESSAGE, reason, self._now)
                self._lose_child(child, CloseCode.INVALID_MESSAGE, reason, by_peer=False)
            case MessageDelivered() if child is not None:
                self._note_delivered(child, event)
            case MessageDelivered():
                if self._refused.get(connection) == event.number:
                    del self._refused[connection]
                    connection.close(EndCode.REFUSED, "refused", self._now)
            case Disconnected() if child is not None:
                self._lose_child(child, event.code, event.reason, by_peer=event.by_peer)
            case Disconnected():
                self._refused.pop(connection, None)

    def _enter(self, connection: Connection) -> None:
        """Let a child in; without a parent, tell it so."""
        if self._parent is None or self._window_bytes is None or self._parent_stops:
            reason = "this relay has no connection to its master, and dials it: try again"
            where = next(iter(self._parents.elsewhere), None)
            refuse = Refuse(RefusalCode.NOT_IN_CHARGE, reason, where)
            self._refused[connection] = Link(connection).send(refuse)
            return
        self._last_number += 1
        child = Child(connection, self._last_number, self._parent, self._window_bytes)
        self._children[connection] = self._by_number[child.number] = child
        Link(connection).send_logged(Elsewhere(self._parents.elsewhere))

    def _note_delivered(self, child: Child, event: MessageDelivered) -> None:
        number = event.number if event.stream == LOG_STREAM else None
        if self._fan_out is not None and self._fan_out.on_delivered(child, number, self._now):
            return
        self._receipts.append((child.number, event.stream, event.number))
        self._is_due = True

    def _lose_child(self, child: Child, code: int, reason: str, *, by_peer: bool) -> None:
        self._children.pop(child.connection, None)
        child.end(code, reason, by_peer=by_peer)
        self._forget_if_told(child.number)
        if self._fan_out is not None:
            self._fan_out.remove(child)
        self._close_if_unused()

    def _forget_if_told(self, number: int) -> None:
        """Forget a child that is gone, once the parent has all that it has sent."""
        if self._by_number[number].is_told:
            del self._by_number[number]

    def _close_if_unused(self) -> None:
        """Close the connection to a parent that stops, when all children are gone."""
        if self._parent_stops and not self._by_number and self._parent is not None:
            reason = "the parent stops"
            self._parent.connection.close(EndCode.STOPPED, reason, self._now)
            self._lose_parent(EndCode.STOPPED, reason)

    # What is due.

    def _pass_on_log(self) -> None:
        """Send children what they lack, and the parent what they have."""
        self._is_due = False
        parent, fan_out = self._parent, self._fan_out
        if parent is None:
            return
        while self._receipts:
            count = min(len(self._receipts), RECEIPTS_MAX)
            parent.send(Receipts.of([self._receipts.popleft() for _ in range(count)]))
        if fan_out is None:
            return
        for child in fan_out.take_queued(self._now):
            parent.send(Unfed(fan_out.number, child.number))
        fan_out.serve(self._now)
        for child, reason in fan_out.too_slow(self._config.slow_seconds, self._now):
            logger.warning("branch %d is sent away: %s", child.number, reason)
            child.connection.close(EndCode.TOO_SLOW, reason, self._now)
            self._lose_child(child, EndCode.TOO_SLOW, reason, by_peer=False)
        have = fan_out.news(self._now)
        if have is not None:
            parent.send(have)

    def _complain(self, what: str) -> None:
        if what != self._complaint:
            logger.error("%s", what)
        self._complaint = what
