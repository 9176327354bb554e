"""`Dialing`: by which way a worker reaches its master, and what to say where none leads there.

UDP comes first. Where a firewall drops it nobody says so, and all there is to notice is that
nothing is answered; so after a while TCP has its turn, and then, as long as there is time, UDP
again: a master that is only just starting would else be reached over TCP by whoever was early.

Where the master's name has several addresses, a try begins with the first one and goes on to the
next one when that fails, or has not answered for a moment, while it may still do so: the first
address to answer is taken, and the others are let go (RFC 8305). So a name that has an address
where nobody listens costs a fraction of a second.

A run can have two masters, one of which is in charge. A master says where the other one is; who has
lost his, or was told that it is not in charge, then tries both in turn.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, TypeAlias

from gradwire.errors import UnreachableError
from gradwire.settings.settings import Transport
from gradwire_protocol import CloseCode, Connection, Disconnected, Event
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link

UDP: Final = "udp"
TCP: Final = "tcp"

TRIES: Final[dict[Transport, tuple[str, ...]]] = {
    "auto": (UDP, UDP, UDP, TCP),
    "udp": (UDP,),
    "tcp": (TCP,),
}
"""What is tried one after the other, and then again."""

SHARES: Final = {UDP: 0.1, TCP: 0.4}
"""Where both are tried: how much of all the time one try may take. Three of UDP take 3 of 10 s."""

PAUSE_SHARE: Final = 0.05
"""From the beginning of one try to that of the next, at least, as a part of all the time: a port
where nobody listens says so at once, and may be about to be listened at. Nothing is begun any more
when less than this is left."""

ADDRESS_SECONDS: Final = 0.25
"""From the beginning with one address of a name to that with the next one, where the first is
silent: what RFC 8305, section 5, recommends."""

MASTERS_MAX: Final = 4
"""Addresses of masters that are tried: two, by the names that the worker and each of them knows."""

QUESTIONS: Final = {
    (UDP,): "does UDP",
    (TCP,): "does TCP",
    (UDP, TCP): "does UDP, or at least TCP,",
}
"""By what was tried."""


KEYS: Final = {
    False: "This worker has no key, and a master that has one does not answer those without: "
    "`gradwire keygen --worker NAME --from run.key` makes one there, key_file or GRADWIRE_KEY_FILE "
    "names it here.",
    True: "A master is silent, too, when it runs without a key, when this worker's key does not "
    "follow from its run key or is denied there, and when the clocks of both differ much.",
}
"""What else the silence may mean, by whether the worker has a key. To who cannot prove anything a
master says nothing, not even this."""


Dial: TypeAlias = Callable[[float], Connection]
"""Told the time, begins a connection."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to a master."""

    name: str
    dial: Dial
    master: str = ""
    """Which master it leads to; empty for the one that was named first."""
    others: tuple[Dial, ...] = ()
    """To the other addresses of its name."""


class Dialing:
    """Tries ways until a master answers or the time is up.

    Parameters
    ----------
    ways : sequence of Way
        In the order to try them in, over and over.
    master : str
        How a person would write the master's address, for error messages.
    timeout : float
        Seconds for all tries together.
    has_key : bool
        Whether they are made with a key.
    pauses : iterator of float, optional
        Seconds from the beginning of one try to that of the next, at least.
    reach : callable, optional
        Told ``"udp"`` or ``"tcp"`` and the address of another master, returns the way there. Raises
        `GradwireError` where there is none.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        master: str,
        timeout: float,
        *,
        has_key: bool = False,
        pauses: Iterator[float] | None = None,
        reach: Callable[[str, str], Way] | None = None,
    ) -> None:
        self.way = ways[0]
        """What is being tried, or was taken."""
        self.next_at: float | None = None
        """When `dial` has to be called; None while a try is under way, or when all is over."""
        self._ways = list(ways)
        self._turn = 0
        self._racing: dict[Connection, Dial] = {}
        """What has been begun in this try, until one of them has answered."""
        self._untried: deque[Dial] = deque()
        """To addresses that have not had their turn in this try."""
        self._others: list[Way] = []
        """To other masters."""
        self._reach = reach
        self._master = master
        self._timeout = timeout
        self._has_key = has_key
        self._pauses = pauses or repeat(PAUSE_SHARE * timeout)
        self._names = tuple(dict.fromkeys(way.name for way in ways))
        self._reasons: dict[str, str] = {}
        self._began: float | None = None
        self._tried_at = 0.0

    def begin(self, now: float) -> None:
        """Let the time run, and the first try wait for its pause."""
        self._began = self._tried_at = now
        self.next_at = now + next(self._pauses)

    def dial(self, now: float) -> Connection:
        """Begin the next try; or, while one is under way, go on to the next address."""
        if self._began is None:
            self._began = now
        if not self._untried:
            ways = [*self._ways, *self._others]
            self.way = ways[self._turn % len(ways)]
            self._turn += 1
            self._tried_at = now
            self._racing.clear()
            self._untried.extend((self.way.dial, *self.way.others))
        dial = self._untried.popleft()
        self.next_at = now + ADDRESS_SECONDS if self._untried else None
        connection = dial(now)
        self._racing[connection] = dial
        return connection

    def heard(self, link: Link, connection: Connection, event: Event, now: float) -> Link | None:
        """Return the link to act on an event with; None where the event is of no interest.

        The first connection of a try that answers, whatever it says, is the one that counts. Of
        those that reach nobody, the last one is.

        Parameters
        ----------
        link : Link
            With the connection that was dialled last.
        connection : Connection
            What reports the event.
        event : Event
        now : float
        """
        dial = self._racing.pop(connection, None)
        if dial is None:
            return link if connection is link.connection else None
        if isinstance(event, Disconnected) and event.code == CloseCode.UNREACHABLE:
            if self._untried:
                self.next_at = now
            if self._untried or self._racing:
                return None
        else:
            self.stop(now)
            everything = (self.way.dial, *self.way.others)
            others = tuple(each for each in everything if each is not dial)
            self.way = replace(self.way, dial=dial, others=others)  # it is dialled again first
        return link if connection is link.connection else Link(connection)

    def stop(self, now: float) -> None:
        """Let go of every connection of this try that has not answered."""
        for connection in self._racing:
            connection.close(EndCode.ABORTED, "another address answered first", now)
        self._racing.clear()
        self._untried.clear()
        self.next_at = None

    def failed(self, reason: str, now: float) -> bool:
        """Note that a try has led nowhere; return whether there will be another one."""
        self._reasons[self.way.name] = reason
        assert self._began is not None
        pause = next(self._pauses)
        over = now - self._began >= self._timeout - pause
        self.next_at = None if over else max(self._tried_at + pause, now)
        return not over

    def learn(self, master: str | None) -> None:
        """Note the address of another master, to be tried, too."""
        known = {way.master for way in (*self._ways, *self._others)}
        if master is None or self._reach is None or master in known or len(known) >= MASTERS_MAX:
            return
        self._others.append(self._reach(self.way.name, master))

    def again(self, timeout: float, pauses: Iterator[float]) -> "Dialing":
        """Return a dialing for who was connected before, by the way that has led there.

        And by those that lead to other masters.
        """
        dialing = Dialing(
            [self.way], self._master, timeout, has_key=self._has_key, pauses=pauses,
            reach=self._reach,
        )  # fmt: skip
        ways = {way.master: way for way in (*self._ways, *self._others)}
        dialing._others = [way for master, way in ways.items() if master != self.way.master]
        return dialing

    @property
    def detour(self) -> str | None:
        """What is wrong with the ways that come before the one that was taken."""
        tried = self._names[: self._names.index(self.way.name)]
        return self._say(tried) or None

    def error(self) -> UnreachableError:
        """Return what to tell who waits for a master."""
        tried = "" if self._names == (UDP,) else f"; {self._say(self._names)}"
        return UnreachableError(
            f"no master answers at {self._master} (waited {self._timeout:g} s{tried}): "
            f"is `gradwire master` running there, and {QUESTIONS[self._names]} pass the firewalls "
            f"between? {KEYS[self._has_key]}"
        )

    def _say(self, names: Sequence[str]) -> str:
        return "; ".join(
            _phrase(name.upper(), self._reasons[name]) for name in names if name in self._reasons
        )


def _phrase(name: str, reason: str) -> str:
    if reason.startswith("no answer"):  # to so many datagrams of the last try, which is no news
        return f"no answer over {name}"
    return f"over {name}: {reason}"
