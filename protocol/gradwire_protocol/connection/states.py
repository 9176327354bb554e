"""`State`: the phases of a connection, and `Ending`: the timers of its last two.

::

    CONNECTING ──ACCEPT──▶ OPEN ──close()──▶ CLOSING ──timer──▶ CLOSED
        │                   ├─────CLOSE────▶ DRAINING ──timer──▶   ▲
        └──no answer────────┴──idle timeout────────────────────────┘

A responder's connection begins OPEN, with the first authentic packet of its peer. In CLOSING we
repeat our CLOSE; in DRAINING, after the peer's CLOSE, we send nothing. Both phases last long enough
for late packets to arrive, which would otherwise belong to no connection.
"""

from enum import Enum, auto
from typing import Final

from gradwire_protocol.limits import CLOSE_COPIES


class State(Enum):
    """The phase of a connection."""

    CONNECTING = auto()
    OPEN = auto()
    CLOSING = auto()
    DRAINING = auto()
    CLOSED = auto()


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.CONNECTING: frozenset({State.OPEN, State.CLOSED}),
    State.OPEN: frozenset({State.CLOSING, State.DRAINING, State.CLOSED}),
    State.CLOSING: frozenset({State.DRAINING, State.CLOSED}),
    State.DRAINING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


class Ending:
    """The end of CLOSING or DRAINING, and the copies of the CLOSE until then."""

    __slots__ = ("_copies", "_frame", "_next", "over_at")

    def __init__(self) -> None:
        self.over_at = 0.0
        """When the connection is CLOSED."""
        self._frame = b""
        self._copies = 0
        self._next = 0.0

    def begin(self, now: float, probe_timeout: float, frame: bytes = b"") -> None:
        """Begin CLOSING with a CLOSE to repeat, or DRAINING without one."""
        self.over_at = now + 3 * probe_timeout
        self._frame = frame
        self._copies = CLOSE_COPIES if frame else 0
        self._next = now

    @property
    def deadlines(self) -> tuple[float, ...]:
        """When the next copy is due, if any is left, and when the connection is CLOSED."""
        return (self._next, self.over_at) if self._copies else (self.over_at,)

    def frame_to_send(self, now: float, probe_timeout: float) -> bytes | None:
        """Return the CLOSE if it is due; the next copy is due a probe timeout later."""
        if not self._copies or now < self._next:
            return None
        self._copies -= 1
        self._next = now + probe_timeout
        return self._frame
