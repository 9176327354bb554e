"""`WorkerState`: a worker's place in the run, and its stage. All parts of the worker share it.

::

                      ┌────────────────────────────┐ connection lost
                      ▼                            │
    CONNECTING ──▶ JOINING ──▶ FOUNDING ────────▶ LIVE ──▶ LEAVING ──▶ CLOSED
                      ├──────▶ SYNCING ────────────▲
                      └── (back, lacks little) ────┘

While the master is not in charge, JOINING leads back to CONNECTING.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from gradwire.worker.buffers import SharedBuffers
from gradwire.worker.log_copy import LogCopy
from gradwire.worker.membership import Membership
from gradwire.worker.own_updates import OwnUpdates
from gradwire.worker.reconnection import Reconnection
from gradwire.worker.update_log import OwnUpdate
from gradwire_protocol.messages.admission import Join, Peer, Welcome
from gradwire_protocol.messages.fields import REASON_CHARACTERS_MAX
from gradwire_protocol.messages.link import Control, Link
from gradwire_protocol.messages.updates import EncodedUpdate


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


@dataclass(slots=True, kw_only=True)
class WorkerState:
    """What the parts of a worker share."""

    join: Join
    """Its first request."""
    membership: Membership
    reconnection: Reconnection
    own: OwnUpdates
    log: LogCopy
    buffers: SharedBuffers
    stage: Stage = Stage.CONNECTING
    link: Link | None = None
    """To the master."""
    welcome: Welcome | None = None
    """The first one."""
    rank: int = -1
    workers: int = 0
    """How many take part, itself included."""
    heard_of: set[int] = field(default_factory=set)
    """The ranks that have been in a roster."""
    term: int = 0
    """The highest one of a master that this worker followed, or promised to follow."""
    took_part: bool = False
    """Whether it was ever live: after that it comes back, and does not join as new."""
    has_finished: bool = False
    """Whether it sends no more updates. The master is told now, or when we are back."""
    leave_reason: str | None = None
    """Set once it wants to leave."""
    gave_up: bool = False
    """Whether its replica lacks updates for good, because it comes back only to leave."""

    @property
    def is_cut_off(self) -> bool:
        """Whether it takes part, has lost its connection, and is not live again yet."""
        return self.reconnection.lost is not None and self.stage is not Stage.CLOSED

    def note_roster(self, peers: Sequence[Peer]) -> None:
        """Note who takes part."""
        self.workers = len(peers)
        self.heard_of.update(peer.rank for peer in peers)

    def move_to(self, stage: Stage) -> None:
        """Go on to another stage."""
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    @property
    def has_left(self) -> bool:
        """Whether all it sent is delivered, and only the master's goodbye is missing."""
        return self.leave_reason is not None and self.own.delivered == self.own.sequence

    @property
    def dials_at(self) -> float | None:
        """When to dial the master again; None if no try is due."""
        dialing = self.reconnection.dialing
        if dialing is None or self.stage is not Stage.CONNECTING:
            return None
        return dialing.next_at

    def tell(self, message: Control) -> None:
        """Send a message if live. Otherwise `Admission` sends what counts when we are back."""
        if self.stage is Stage.LIVE and self.link is not None:
            self.link.send(message)

    def send(self, update: OwnUpdate) -> None:
        """Send an own update."""
        assert self.link is not None
        sequence = update.sequence
        closes = {self.rank: sequence} if update.is_last else {}
        encoded = EncodedUpdate(
            sequence, update.based_on, update.body, update.clock, update.pace, closes
        )
        self.link.send_update(self.rank, update.sequence, encoded.pack())


def printable(reason: str) -> str:
    """Return a reason as messages carry it: printable, of at most `REASON_CHARACTERS_MAX`."""
    return "".join(c if c.isprintable() else " " for c in reason)[:REASON_CHARACTERS_MAX]
