"""`Reconnection`: what follows from the end of a connection, another attempt or an error.

A connection that neither side wanted to end is dialled again, for as long as the session is ready
to wait. For any other end the training thread gets an error that says what to do about it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gradwire.errors import (
    ConnectionLostError,
    DivergedError,
    GradwireError,
    ProtocolError,
    RefusedError,
    VersionMismatchError,
)
from gradwire.worker.dialing import Dialing
from gradwire_protocol import CloseCode, Disconnected
from gradwire_protocol.messages.admission import RefusalCode
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.wire.packets import VERSION

FIRST_SECONDS: Final = 0.1
SECONDS_MAX: Final = 1.0
"""A thousand workers then dial a thousand times a second, which costs a master some hundredths of a
core. A master that is back hears from every worker within little more than a second."""

JITTER: Final = 0.5
"""A wait is shorter or longer by up to this part, so that workers that lost their master together
do not come back together."""


def pauses(random: Callable[[], float]) -> Iterator[float]:
    """Yield waits in seconds, doubling up to a limit; `random` returns numbers from 0 to 1."""
    wait = FIRST_SECONDS
    while True:
        yield wait * (1 - JITTER + 2 * JITTER * random())
        wait = min(2 * wait, SECONDS_MAX)


RECOVERABLE: Final = frozenset(
    {
        CloseCode.IDLE,
        CloseCode.LOST,
        CloseCode.RESET,
        CloseCode.STALLED,
        EndCode.STEPPED_DOWN,
        EndCode.TOO_SLOW,
    }
)
"""Ends of a connection after which the worker dials again: neither side wanted it, the master hands
over, or too much waited for this worker. A path that leads in one direction only for a while
stalls; one that swallows large packets stalls again and again."""

REPEATED: Final = RECOVERABLE | {EndCode.REFUSED, EndCode.NO_JOIN}
"""Ends of an attempt to come back after which there can be another one. A refused worker was told
why before."""


class Reconnection:
    """Dials the master, and dials it again.

    Parameters
    ----------
    master : str
        Its address, for error messages.
    seconds : float
        How long to dial when the connection is lost.
    random : callable
        Returns numbers from 0 to 1, evenly distributed: when to dial again.
    """

    def __init__(self, master: str, seconds: float, random: Callable[[], float]) -> None:
        self.dialing: Dialing | None = None
        """None before the first attempt."""
        self.lost: str | None = None
        """Why there is no connection; None while there is one, or never was."""
        self._master = master
        self._seconds = seconds
        self._random = random
        self._stalled_with = -1
        """How many of our updates the master had when a connection last stalled."""

    def failed(self, reason: str, now: float) -> bool:
        """Note that an attempt has failed; return whether there will be another one."""
        return self.dialing is not None and self.dialing.failed(reason, now)

    def add_master(self, master: str | None) -> None:
        """Add the address of another master to try."""
        assert self.dialing is not None
        self.dialing.add_master(master)

    def dial_next(self, master: str) -> None:
        """Have the next try be of another master."""
        assert self.dialing is not None
        self.dialing.dial_next(master)

    def go_to(self, masters: Sequence[str]) -> None:
        """Have the next try be of the first of these masters; the others are tried, too."""
        if self.dialing is None:
            return
        for master in masters[1:]:
            self.dialing.add_master(master)
        self.dialing.dial_next(masters[0])

    def lose(self, event: Disconnected, accepted: int, now: float) -> bool:
        """Note that a connection has ended; return whether to dial again.

        `accepted` is how many of our updates the master had when it let us in.
        """
        if event.code not in (RECOVERABLE if self.lost is None else REPEATED):
            return False
        if event.code == CloseCode.STALLED:
            if self._stalled_with == accepted:
                return False  # we were back, and nothing has got through since
            self._stalled_with = accepted
        if self.lost is not None:
            return self.failed(event.reason, now)
        assert self.dialing is not None
        self.lost = event.reason
        self.dialing = self.dialing.for_reconnection(self._seconds, pauses(self._random))
        self.dialing.begin(now)
        return True

    def error(self, event: Disconnected, *, leaving: bool) -> GradwireError | None:
        """Return the error for the training thread; None for an end that we wanted by `leaving`."""
        match event.code:
            case CloseCode.UNREACHABLE if self.lost is None:
                assert self.dialing is not None
                return self.dialing.error()
            case _ if self.lost is not None and event.code in {CloseCode.UNREACHABLE, *RECOVERABLE}:
                return ConnectionLostError(
                    f"the connection to the master at {self._master} was lost ({self.lost}), and "
                    f"in {self._seconds:g} s of dialling it did not come back: {event.reason}"
                )
            case CloseCode.VERSION:
                return VersionMismatchError(
                    f"the master at {self._master} speaks protocol version {event.reason}, this "
                    f"gradwire {VERSION}: install the same version of gradwire on both"
                )
            case CloseCode.FULL:
                return RefusedError(
                    RefusalCode.RUN_FULL, f"the master at {self._master} refused: {event.reason}"
                )
            case EndCode.LEFT if leaving:
                return None
            case EndCode.DIVERGED:
                return DivergedError(f"the master refused an update, because {event.reason}")
            case CloseCode.VIOLATION | CloseCode.FLOW_CONTROL | CloseCode.INVALID_MESSAGE:
                side = "says we have" if event.by_peer else "has"
                return ProtocolError(
                    f"the master at {self._master} {side} broken the protocol: {event.reason}"
                )
        return ConnectionLostError(
            f"the connection to the master at {self._master} is over: {event.reason}"
        )
