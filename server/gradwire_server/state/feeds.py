"""`Feeds`: relays that are sent the log once, for all workers behind them.

A worker behind a relay is sent the log like any other, in messages of its own, until it is exactly
as far as its relay. From there the relay sends it the log: FED says from which position on. A relay
behind a relay is handed over to that one in the same way. Where the relay's log has no such
position any more, because it was sent a sum across it, UNFED gives the worker back.

What those have that relays feed, each relay says for all of its own together: HAVE.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gradwire_protocol import MessageDelivered
from gradwire_protocol.messages.kinds import LOG_STREAM
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.relays import Fed, Have
from gradwire_protocol.messages.relays import Feed as FeedMessage
from gradwire_server.log.cursor import Cursor, Numbers
from gradwire_server.log.log import Log
from gradwire_server.state.roster import Member, Phase
from gradwire_server.trunks.branch import BranchConnection, Carrier

NO_RANK = -1
"""Of a relay: it is sent the updates of all."""


@dataclass(slots=True)
class _HandedOver:
    """Who is sent the log by a relay."""

    who: "Member | LogFeed"
    cursor: Cursor
    """Where it was sent the log to from here; the relay goes on from there, or gives it back."""
    index: int
    is_taken: bool = False
    """Whether the relay has said that it goes on."""


class LogFeed:
    """The log as one relay is sent it.

    Parameters
    ----------
    owner : Feeds
    trunk : Carrier
        Of the relay.
    cursor : Cursor
        In the log.
    """

    def __init__(self, owner: "Feeds", trunk: Carrier, cursor: Cursor) -> None:
        self.trunk = trunk
        self.cursor = cursor
        """As long as no other relay feeds this one."""
        self.handed: dict[int, _HandedOver] = {}
        """By branch: those that it feeds."""
        self.is_taken = False
        """Whether its relay has said that it takes it."""
        self.is_fed = False
        """Whether another relay feeds this one."""
        self._owner = owner
        self.have = cursor.sent
        """Up to where all have the log that the relay sends it."""
        self._fed = 0
        """How many it was to feed."""

    @property
    def link(self) -> Link:
        """To the relay."""
        return self.trunk.link

    @property
    def acknowledged(self) -> int:
        """Up to where it needs the log no more."""
        return min(self.cursor.acknowledged, self.have) if self.handed else self.cursor.acknowledged

    @property
    def source(self) -> "LogFeed":
        """The one that is sent the log from here, and feeds this one: this one, or before it."""
        connection = self.link.connection
        if not self.is_fed or not isinstance(connection, BranchConnection):
            return self
        before = self._owner.at(connection.trunk)
        return self if before is None else before.source

    def hand_over(self, who: "Member | LogFeed", branch: int, cursor: Cursor, rank: int) -> None:
        """Let the relay send a branch what comes next."""
        self._fed += 1
        self.handed[branch] = _HandedOver(who, cursor, self._fed)
        self.link.send(
            Fed(
                self.trunk.feeds,
                self._fed,
                branch,
                cursor.sent,
                cursor.told,
                self._owner.numbers.next,
                None if rank == NO_RANK else rank,
            )
        )

    # See `branch.Feed`.

    def hear(self, have: Have) -> None:
        """Note up to where the relay's workers have the log."""
        for each in self.handed.values():
            if not each.is_taken and each.index <= have.index:
                each.is_taken = True
                self._owner.settle(each)
        self.have = max(self.have, have.position)
        self._owner.numbers.skip_to(have.number)
        self.cursor.skip_to(have.number)
        self.is_taken = True
        self._owner.on_heard()

    def take_back(self, branch: int) -> None:
        """Send a branch the log from here, as the relay cannot."""
        handed = self.handed.get(branch)
        if handed is not None and not handed.is_taken:
            del self.handed[branch]
            self._owner.take_back(handed)

    def on_delivered(self, event: MessageDelivered, now: float) -> None:
        """Note that a message was delivered to the relay."""
        if event.stream == LOG_STREAM:
            self.cursor.on_delivered(event.number, self.link, self._owner.numbers, now)
        else:
            self.cursor.progress_at = now
        self._owner.on_progress(self)

    def end(self) -> None:
        """Forget it: the relay is lost, or the run is over."""
        self._owner.remove(self)


class Feeds:
    """The relays that are sent the log of one run."""

    def __init__(self, log: Log, numbers: Numbers, *, has_rounds: bool) -> None:
        self.numbers = numbers
        self.has_news = False
        """Whether a relay has said since this was last cleared what its workers have."""
        self.is_due = False
        """Whether there may be something to send."""
        self._log = log
        self._has_rounds = has_rounds
        self._feeds: dict[Carrier, LogFeed] = {}
        self._fed: dict[Member, LogFeed] = {}
        self._candidates: dict[Member, Cursor] = {}
        """Workers behind relays that are not fed by these yet."""
        self._settled: set[Cursor] = set()
        """Of those that relays feed: it is idle, and not in the log any more."""
        log.reported = lambda: (each.have for each in set(self._fed.values()))

    def __iter__(self) -> Iterator[LogFeed]:
        """Iterate over those that are sent the log from here."""
        return (each for each in self._feeds.values() if not each.is_fed)

    def at(self, trunk: Carrier) -> LogFeed | None:
        """Return the one of a relay."""
        return self._feeds.get(trunk)

    def feeds(self, member: Member) -> bool:
        """Return whether a relay sends a member the log."""
        return member in self._fed

    def acknowledged(self, member: Member, cursor: Cursor) -> int:
        """Return up to where a member has the log."""
        feed = self._fed.get(member)
        if feed is None:
            return cursor.acknowledged
        if cursor in self._settled:
            return feed.have
        return min(feed.have, cursor.acknowledged)

    def enter(self, member: Member, cursor: Cursor, now: float) -> None:
        """Note a member that is sent the log: its relay may do that for us."""
        connection = member.link.connection
        if member.observes or not isinstance(connection, BranchConnection):
            return
        self._candidates[member] = cursor
        self._begin(connection.trunk, now)

    def forget(self, member: Member) -> None:
        """Forget a member that has left."""
        self._candidates.pop(member, None)
        feed, connection = self._fed.pop(member, None), member.link.connection
        if feed is not None and isinstance(connection, BranchConnection):
            handed = feed.handed.pop(connection.branch)
            self._settled.discard(handed.cursor)
            self.on_heard()

    def hand_over(self) -> None:
        """Let relays feed those that are as far as they are."""
        for member, cursor in list(self._candidates.items()):
            connection = member.link.connection
            assert isinstance(connection, BranchConnection)
            feed = self._feeds.get(connection.trunk)
            if feed is not None and member.phase is Phase.LIVE and _is_as_far(cursor, feed):
                feed.hand_over(member, connection.branch, cursor, member.rank)
                self._fed[member] = feed
                del self._candidates[member]
        for feed in list(self):
            connection = feed.link.connection
            if not isinstance(connection, BranchConnection) or not feed.is_taken:
                continue
            before = self._feeds.get(connection.trunk)
            if before is not None and _is_as_far(feed.cursor, before):
                before.hand_over(feed, connection.branch, feed.cursor, NO_RANK)
                feed.is_fed = True
                self.on_progress(feed)

    def on_heard(self) -> None:
        """Note that a relay has said what its workers have."""
        self.has_news = self.is_due = True

    def on_progress(self, feed: LogFeed) -> None:
        """Note that a relay has taken something."""
        connection = feed.link.connection
        self.is_due |= self._log.nbytes > self._log.limit
        if not feed.is_fed:
            self.is_due |= feed.cursor.sent < self._log.head
        elif isinstance(connection, BranchConnection):
            before = self.at(connection.trunk)
            if before is not None and connection.branch in before.handed:
                self.settle(before.handed[connection.branch])

    def on_delivered(self, member: Member) -> None:
        """Note that a member has taken what was sent from here."""
        feed, connection = self._fed.get(member), member.link.connection
        if feed is not None and isinstance(connection, BranchConnection):
            self.settle(feed.handed[connection.branch])

    def settle(self, handed: _HandedOver) -> None:
        """Forget a cursor if the relay goes on from it, and all before was delivered."""
        if handed.is_taken and handed.cursor.is_idle:
            self._log.unsubscribe(handed.cursor)
            self._settled.add(handed.cursor)
            self.is_due = True

    def take_back(self, handed: _HandedOver) -> None:
        """Send somebody the log from here again: the relay cannot."""
        if isinstance(handed.who, LogFeed):
            handed.who.is_fed = False
        else:
            del self._fed[handed.who]
            self._candidates[handed.who] = handed.cursor
        self.on_heard()

    def remove(self, feed: LogFeed) -> None:
        """Forget a relay that is lost."""
        feed.trunk.feed = None
        self._feeds.pop(feed.trunk, None)
        connection = feed.link.connection
        if isinstance(connection, BranchConnection):
            before = self.at(connection.trunk)
            if before is not None:
                before.handed.pop(connection.branch, None)
        self._settled.discard(feed.cursor)
        self._log.unsubscribe(feed.cursor)
        self.on_heard()

    def end(self) -> None:
        """Forget all: the run is over."""
        for feed in list(self._feeds.values()):
            self.remove(feed)

    def _begin(self, trunk: Carrier, now: float) -> None:
        """Have a relay, and those before it, be sent the log from now on."""
        if trunk.feed is not None or trunk.lost is not None:
            return
        trunk.feeds += 1
        feed = LogFeed(self, trunk, self._log.subscribe(NO_RANK, now, counts=lambda: False))
        trunk.feed = self._feeds[trunk] = feed
        log = self._log
        trunk.link.send(
            FeedMessage(trunk.feeds, log.place, dict(log.versions), log.elements, self._has_rounds)
        )
        before = trunk.link.connection
        if isinstance(before, BranchConnection):
            self._begin(before.trunk, now)


def _is_as_far(cursor: Cursor, feed: LogFeed) -> bool:
    """Return whether one was sent the log up to where a relay was."""
    return (
        feed.is_taken
        and cursor.sent == feed.source.cursor.sent
        and cursor.sent >= cursor.pause
        and not cursor.is_sending
    )
