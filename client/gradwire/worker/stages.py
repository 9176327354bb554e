"""`Stage`: how far a worker has got with its master.

::

                      ┌────────────────────────────┐ connection lost
                      ▼                            │
    CONNECTING ──▶ JOINING ──▶ FOUNDING ────────▶ LIVE ──▶ LEAVING ──▶ CLOSED
                      ├──────▶ SYNCING ────────────▲
                      └── (back, lacks little) ────┘

While the master is not in charge, JOINING leads back to CONNECTING.
"""

from enum import Enum, auto
from typing import Final


class Stage(Enum):
    """How far a worker has got."""

    CONNECTING = auto()
    JOINING = auto()
    FOUNDING = auto()
    SYNCING = auto()
    LIVE = auto()
    LEAVING = auto()
    CLOSED = auto()


TRANSITIONS: Final[dict[Stage, frozenset[Stage]]] = {
    Stage.CONNECTING: frozenset({Stage.JOINING, Stage.CLOSED}),
    Stage.JOINING: frozenset(
        {Stage.FOUNDING, Stage.SYNCING, Stage.LIVE, Stage.CONNECTING, Stage.CLOSED}
    ),
    Stage.FOUNDING: frozenset({Stage.LIVE, Stage.LEAVING, Stage.CONNECTING, Stage.CLOSED}),
    Stage.SYNCING: frozenset({Stage.LIVE, Stage.LEAVING, Stage.CONNECTING, Stage.CLOSED}),
    Stage.LIVE: frozenset({Stage.LEAVING, Stage.CONNECTING, Stage.CLOSED}),
    Stage.LEAVING: frozenset({Stage.CONNECTING, Stage.CLOSED}),
    Stage.CLOSED: frozenset(),
}
