"""`Dialing`: how a worker reaches its master, and the error if it cannot.

UDP comes first. A firewall that drops it says nothing: all that a worker notices is that nobody
answers. So after a while it tries TCP and then, as long as there is time, UDP again. Without that,
a worker that dials a master which is only just starting would stay with TCP.

If the master's name has several addresses, a try begins with the first one. It goes on to the next
one when that fails, or has not answered for a moment, while the first may still answer. The first
address to answer is taken, and the other connections are closed (RFC 8305). So an address where
nobody listens costs a fraction of a second.

The parts of a run are started in any order. A machine that is silent may be about to come up, so it
is waited for longest. One that refuses is up, and its port is most likely wrong: a master that is
about to listen there has less time. So has what accepts TCP connections and does not answer, as a
master does to a worker without its key. If it is TCP that finds a master listening at last, UDP is
tried once more.

A run can have two masters, one of which is in charge. A master says where the other one is. A
worker that has lost its master, or was told that it is not in charge, tries both in turn.

The name of the first master may lead elsewhere later. Each try dials where it leads by then.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, TypeAlias

from gradwire.errors import UnreachableError
from gradwire.settings.settings import Transport
from gradwire_protocol import CloseCode, Connected, Connection, Disconnected, Event
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.link import Link

UDP: Final = "udp"
TCP: Final = "tcp"

TRIES: Final[dict[Transport, tuple[str, ...]]] = {
    "auto": (UDP, UDP, UDP, TCP),
    "udp": (UDP,),
    "tcp": (TCP,),
}
"""Transports to try one after the other, over and over."""

SHARES: Final = {UDP: 0.1, TCP: 0.4}
"""If both are tried: which part of the whole time one try may take. Three tries of UDP take 3 of 10
s."""

PAUSE_SHARE: Final = 0.05
"""Least time from the beginning of one try to that of the next, as a part of the whole time: a port
where nobody listens says so at once, and a master may be about to listen there. No try begins
when less than this is left."""

ADDRESS_SECONDS: Final = 0.25
"""From dialling one address of a name to dialling the next one, while the first is silent: what RFC
8305, section 5, recommends."""

MASTERS_MAX: Final = 4
"""Addresses of masters that are tried: those of two masters, which workers and masters may know by
different names."""

REFUSED: Final = os.strerror(errno.ECONNREFUSED)
"""Why a try of TCP has failed where a machine is up, but nothing listens."""

QUESTIONS: Final = {
    (UDP,): "does UDP",
    (TCP,): "does TCP",
    (UDP, TCP): "does UDP, or at least TCP,",
}
"""What to ask about firewalls, by the transports that were tried."""


KEYS: Final = {
    False: "This worker has no key, and a master that has one does not answer workers without: "
    "make one there by `gradwire keygen --worker NAME --from run.key`, and name it here by "
    "key_file or GRADWIRE_KEY_FILE.",
    True: "A master is also silent if it runs without a key, if this worker's key was not made "
    "from its run key or is denied there, and if the clocks of both machines differ much.",
}
"""What else silence may mean, by whether the worker has a key. A master tells a worker without a
valid key nothing, not even this."""


Dial: TypeAlias = Callable[[float], Connection]
"""Takes the time and begins a connection."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to a master."""

    name: str
    dial: Dial
    master: str = ""
    """Address of another master that it leads to; empty for the first one."""
    others: tuple[Dial, ...] = ()
    """To the other addresses of the master's name."""
    version: int = 0
    """Which look-up of the name found these addresses."""


class Dialing:
    """Tries ways until a master answers or the time is up.

    Parameters
    ----------
    ways : sequence of Way
        In the order to try them in, over and over.
    master : str
        Its address, for error messages.
    timeout : float
        Seconds for all tries since the master's machine was heard: it refuses them, or accepts TCP.
    start_timeout : float
        Seconds for all tries together; no fewer than `timeout`.
    accepts : callable
        Returns whether something has accepted a TCP connection.
    pauses : iterator of float, optional
        Least seconds from the beginning of one try to that of the next.
    reach : callable, optional
        Takes ``"udp"`` or ``"tcp"`` and the address of another master; returns the way there.
    refresh : callable, optional
        Takes the way of the next try; returns it as it leads by now.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        master: str,
        timeout: float,
        *,
        start_timeout: float = 0.0,
        accepts: Callable[[], bool] = lambda: False,
        has_key: bool = False,
        pauses: Iterator[float] | None = None,
        reach: Callable[[str, str], Way] | None = None,
        refresh: Callable[[Way], Way] = lambda way: way,
    ) -> None:
        self.way = ways[0]
        """The way that is being tried, or was taken."""
        self.next_at: float | None = None
        """When to call `dial`; None while a try is under way, and after the last one."""
        self._ways = list(ways)
        self._turn = 0
        self._racing: dict[Connection, Dial] = {}
        """Connections begun in this try, until one of them has answered."""
        self._untried: deque[Dial] = deque()
        """To addresses that this try has not dialled yet."""
        self._others: list[Way] = []
        """Ways to other masters."""
        self._reach = reach
        self._refresh = refresh
        self._master = master
        self._timeout = timeout
        self._start_timeout = max(start_timeout, timeout)
        self._accepts = accepts
        self._has_key = has_key
        self._pauses = pauses or repeat(PAUSE_SHARE * timeout)
        self._names = tuple(dict.fromkeys(way.name for way in ways))
        self._reasons: dict[str, str] = {}
        self._began: float | None = None
        self._heard_at: float | None = None
        """Since when the master's machine has been up, as far as that is known."""
        self._tried_at = self._failed_at = 0.0

    def begin(self, now: float) -> None:
        """Start the timeout, and let the first try wait for its pause."""
        self._began = self._tried_at = now
        self.next_at = now + next(self._pauses)

    def dial(self, now: float) -> Connection:
        """Begin the next try or, while one is under way, dial its next address."""
        if self._began is None:
            self._began = now
        if not self._untried:
            ways = [*self._ways, *self._others]
            self.way = self._refresh(ways[self._turn % len(ways)])
            self._turn += 1
            self._tried_at = now
            self._racing.clear()
            self._untried.extend((self.way.dial, *self.way.others))
        dial = self._untried.popleft()
        self.next_at = now + ADDRESS_SECONDS if self._untried else None
        connection = dial(now)
        self._racing[connection] = dial
        return connection

    def link_for(self, link: Link, connection: Connection, event: Event, now: float) -> Link | None:
        """Return the link to handle an event with; None if the event does not matter.

        The first connection of a try that answers, whatever it says, is taken. If none of them
        reaches a master, the last one counts.

        Parameters
        ----------
        link : Link
            With the connection that was dialled last.
        connection : Connection
            Which reports the event.
        """
        dial = self._racing.pop(connection, None)
        if dial is None:
            return link if connection is link.connection else None
        if isinstance(event, Disconnected) and event.code == CloseCode.UNREACHABLE:
            if self._untried:
                self.next_at = now
            if self._untried or self._racing:
                return None
        elif isinstance(event, Connected) and self.way.name == TCP and self._udp_is_untried:
            connection.close(EndCode.ABORTED, "UDP has its turn first", now)
            self.stop(now)
            del self._reasons[TCP]
            self._began = self._heard_at = self.next_at = now
            return None
        else:
            self.stop(now)
            everything = (self.way.dial, *self.way.others)
            others = tuple(each for each in everything if each is not dial)
            self.way = replace(self.way, dial=dial, others=others)  # dialled first the next time
        return link if connection is link.connection else Link(connection)

    def stop(self, now: float) -> None:
        """Close every connection of this try that has not answered."""
        for connection in self._racing:
            connection.close(EndCode.ABORTED, "another address answered first", now)
        self._racing.clear()
        self._untried.clear()
        self.next_at = None

    def failed(self, reason: str, now: float) -> bool:
        """Note that a try has failed; return whether there will be another one."""
        self._reasons[self.way.name] = reason
        assert self._began is not None
        self._failed_at = now
        if not (self.is_refused or self._accepts()):
            self._heard_at = None
        elif self._heard_at is None:
            self._heard_at = now
        since = self._began if self._heard_at is None else self._heard_at
        pause = next(self._pauses)
        over = now - since >= self._limit - pause
        self.next_at = None if over else max(self._tried_at + pause, now)
        return not over

    def add_master(self, master: str | None) -> None:
        """Add the address of another master to try."""
        known = {way.master for way in (*self._ways, *self._others)}
        if master is None or self._reach is None or master in known or len(known) >= MASTERS_MAX:
            return
        self._others.append(self._reach(self.way.name, master))

    def for_reconnection(self, timeout: float, pauses: Iterator[float]) -> "Dialing":
        """Return a dialing to come back by: the way that was taken, and those to other masters."""
        dialing = Dialing(
            [self.way], self._master, timeout, has_key=self._has_key, pauses=pauses,
            reach=self._reach, refresh=self._refresh,
        )  # fmt: skip
        ways = {way.master: way for way in (*self._ways, *self._others)}
        dialing._others = [way for master, way in ways.items() if master != self.way.master]
        return dialing

    @property
    def detour(self) -> str | None:
        """What was wrong with the transports tried before the one taken; None if nothing."""
        tried = self._names[: self._names.index(self.way.name)]
        return self._say(tried) or None

    @property
    def is_refused(self) -> bool:
        """Whether the master's machine says that nothing listens there.

        A firewall may say so of UDP, so the word of TCP counts where it was tried.
        """
        return self._reasons.get(TCP, self._reasons.get(UDP)) == REFUSED

    @property
    def purpose(self) -> str:
        """What this waits for, and what has come of the tries so far."""
        most = f"for {self._limit:g} s at most"
        if self.is_refused:
            return (
                f"a master to start at {self._master}: that machine is up, and nothing listens at "
                f"this port ({most})"
            )
        tried = self._say(self._names)
        return f"the master at {self._master} to answer ({f'{tried}; ' if tried else ''}{most})"

    def error(self) -> UnreachableError:
        """Return the error for a worker that waited for a master in vain."""
        if self.is_refused:
            return UnreachableError(
                f"nothing listens at {self._master} ({REFUSED}; waited {self._waited:g} s): is "
                "`gradwire master` running there, and is this its port?"
            )
        tried = "" if self._names == (UDP,) else f"; {self._say(self._names)}"
        return UnreachableError(
            f"no master answers at {self._master} (waited {self._waited:g} s{tried}): "
            f"is `gradwire master` running there, and {QUESTIONS[self._names]} pass the firewalls "
            f"between? {KEYS[self._has_key]}"
        )

    @property
    def _udp_is_untried(self) -> bool:
        """Whether the master has begun to listen since UDP was tried last."""
        return self._reasons.get(TCP) == REFUSED and UDP in self._names

    @property
    def _limit(self) -> float:
        """Seconds for all tries together or, once the machine was heard, since then."""
        began, heard_at = self._began, self._heard_at
        if began is None or heard_at is None:
            return self._start_timeout
        return min(self._timeout, began + self._start_timeout - heard_at)

    @property
    def _waited(self) -> float:
        """Seconds that all tries have taken."""
        assert self._began is not None
        return round(self._failed_at - self._began, 1)

    def _say(self, names: Sequence[str]) -> str:
        reasons = dict(self._reasons)  # the training thread asks while the network thread dials
        return "; ".join(_phrase(name.upper(), reasons[name]) for name in names if name in reasons)


def _phrase(name: str, reason: str) -> str:
    if reason.startswith("no answer"):  # the rest counts datagrams of the last try
        return f"no answer over {name}"
    return f"over {name}: {reason}"
