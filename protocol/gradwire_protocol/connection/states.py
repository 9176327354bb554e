"""`State`: the phases of a connection, and `Ending`: how long its end takes.

::

    CONNECTING ──ACCEPT──▶ OPEN ──close()──▶ CLOSING ──timer──▶ CLOSED
        │                   ├─────CLOSE────▶ DRAINING ──timer──▶   ▲
        └──no answer────────┴──idle timeout────────────────────────┘

A responder's connection begins OPEN, with the first authentic packet of its peer. In CLOSING our
CLOSE is repeated; in DRAINING nothing is sent. Both last long enough for late packets to arrive,
which would otherwise look like a stranger's.
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
    """What is left to do in CLOSING, where a CLOSE is repeated, and DRAINING, where it is not."""

    __slots__ = ("_copies", "_frame", "_next", "over_at")

    def __init__(self) -> None:
        self.over_at = 0.0
        """When the connection is CLOSED."""
        self._frame = b""
        self._copies = 0
        self._next = 0.0

    def begin(self, now: float, probe_timeout: float, frame: bytes = b"") -> None:
        """Begin to close with a CLOSE to repeat, or to drain."""
        self.over_at = now + 3 * probe_timeout
        self._frame = frame
        self._copies = CLOSE_COPIES if frame else 0
        self._next = now

    @property
    def deadlines(self) -> tuple[float, ...]:
        """When there is something to do."""
        return (self._next, self.over_at) if self._copies else (self.over_at,)

    def frame_to_send(self, now: float, probe_timeout: float) -> bytes | None:
        """Return the CLOSE, if it is due; the next one after a probe timeout."""
        if not self._copies or now < self._next:
            return None
        self._copies -= 1
        self._next = now + probe_timeout
        return self._frame
