"""`State`: where a connection is in its life.

::

    CONNECTING ──ACCEPT──▶ OPEN ──close()──▶ CLOSING ──timer──▶ CLOSED
        │                   ├─────CLOSE────▶ DRAINING ──timer──▶   ▲
        └──no answer────────┴──idle timeout────────────────────────┘

A responder's connection begins OPEN, with the first authentic packet of its peer. In CLOSING our
CLOSE is repeated, in DRAINING nothing is sent; both last long enough that late packets do not
look like those of a stranger.
"""

from enum import Enum, auto
from typing import Final


class State(Enum):
    """Where a connection is in its life."""

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
