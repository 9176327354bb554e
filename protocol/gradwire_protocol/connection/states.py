"""`State`: the phases of a connection.

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
