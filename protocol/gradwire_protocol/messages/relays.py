"""Messages between a relay and its parent, a master or another relay.

A relay lets workers in for its parent. To the parent, each of them is a *branch* of the relay's own
connection, the *trunk*: BRANCH carries what a worker and the master say to each other, as it is.
The relay acts on nothing of that::

    worker            relay                      parent
      │── connects ────▶│── BRANCH  act OPENED ────▶│
      │── JOIN ────────▶│── BRANCH  JOIN ──────────▶│
      │◀── WELCOME ─────│◀── BRANCH  WELCOME ───────│
      │── (has it) ────▶│── RECEIPTS ──────────────▶│
      │                 │◀── RETURNED ──────────────│  credit, when it has used what came

What the relay hears of one worker is numbered, and its parent takes it in this order: so what was
delivered here is there before all that follows from it. What a master says needs no order.

The log is what all workers are sent alike, so the relay is sent it once, as ENTRIES (FEED says from
where on), and passes it on. FED tells which worker takes it from there, and from which position.
HAVE says up to where all of these have it; UNFED, that one has to be sent it as before.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from gradwire_protocol.crypto.keys import KEY_ID_BYTES, NAME_BYTES_MAX, Identity, Role
from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.limits import MESSAGE_BYTES_MAX, REASON_BYTES_MAX, WINDOW_BYTES
from gradwire_protocol.messages.admission import Place
from gradwire_protocol.messages.fields import (
    ADDRESS_CHARACTERS_MAX,
    RANK,
    VERSIONS_BYTES_MAX,
    Position,
    Versions,
)
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    blob,
    choice,
    integer,
    listing,
    record,
    text,
)

RELAYS_DEEP_MAX: Final = 2
"""Relays between a worker and its master."""

BRANCH_OVERHEAD_BYTES: Final = 80
"""What BRANCH takes around a message: 67 bytes. The largest message, of buffers, leaves room for
two: 256 bytes, of which its own map takes 74."""


def passes(kind: int, size: int) -> bool:
    """Return whether a relay can pass a message of a child on, and the next relay, too."""
    wraps = 1 if kind == Kind.BRANCH else RELAYS_DEEP_MAX
    return size <= MESSAGE_BYTES_MAX - wraps * BRANCH_OVERHEAD_BYTES


MESSAGE: Final = 0
OPENED: Final = 1
CLOSED: Final = 2

RECEIPT: Final = struct.Struct("<IHI")
"""Branch, stream, number."""

RECEIPTS_MAX: Final = 4_096
"""In one message: more make another one."""

RELAY_ID_BYTES: Final = 16

ELSEWHERE_MAX: Final = 3
"""Addresses besides the one that a worker knows."""

BranchNumber = Annotated[int, integer(1, 2**32 - 1)]
Count = Annotated[int, integer(0, 2**32 - 1)]


@dataclass(frozen=True, slots=True)
class Trunk(Record):
    """A relay says that it is one, and its parent that it takes it as that."""

    window_bytes: Annotated[int, integer(0, WINDOW_BYTES)] = 0
    """Of the parent: bytes of each branch that may wait there. A relay says 0."""
    relay_id: Annotated[bytes, blob(0, RELAY_ID_BYTES)] = b""
    """Random, and constant for the life of the relay: its older connection is over. A parent says
    nothing."""

    KIND: ClassVar[Kind] = Kind.TRUNK


@dataclass(frozen=True, slots=True)
class Branch(Record):
    """What a worker says to the master or hears from it, or what becomes of its connection."""

    branch: BranchNumber
    """Which worker; they are counted from 1 on, in the order in which they came."""
    index: Count
    """To the parent: what it is in the order of this branch, from 0. From there, 0."""
    act: Annotated[int, choice(MESSAGE, OPENED, CLOSED)]
    """A message, or that the connection was opened or closed, or is to be closed."""
    stream: Annotated[int, integer(0, 2**16 - 1)] = 0
    number: Count = 0
    kind: Annotated[int, integer(0, 2**16 - 1)] = 0
    body: Annotated[bytes, blob(0, MESSAGE_BYTES_MAX)] = b""
    """The message; an `Opened` or a `Closed`."""

    KIND: ClassVar[Kind] = Kind.BRANCH
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Opened(Record):
    """Whose connection was opened: nothing of it is set where there are no keys."""

    name: Annotated[str, text(NAME_BYTES_MAX)] = ""
    role: Annotated[int, choice(0, *Role)] = 0
    key_id: Annotated[bytes, blob(0, KEY_ID_BYTES)] = b""

    @classmethod
    def of(cls, identity: Identity | None) -> "Opened":
        """Return the one for a peer that has proved to be this one."""
        if identity is None:
            return cls()
        return cls(identity.name, int(identity.role), identity.key_id)

    @property
    def identity(self) -> Identity | None:
        """Who the worker is, as its relay has seen it proved."""
        return Identity(self.name, Role(self.role), self.key_id) if self.role else None


@dataclass(frozen=True, slots=True)
class Closed(Record):
    """How a connection has ended, or is to end."""

    code: Annotated[int, integer(0, 2**16 - 1)]
    reason: Annotated[str, text(REASON_BYTES_MAX)]
    by_peer: bool = False
    """Whether the worker has ended it."""

    @classmethod
    def of(cls, code: int, reason: str, *, by_peer: bool = False) -> "Closed":
        """Return the one for an end with any reason."""
        printable = "".join(each if each.isprintable() else "?" for each in reason)
        return cls(code, printable[:REASON_BYTES_MAX], by_peer)


@dataclass(frozen=True, slots=True)
class Receipts(Record):
    """A relay says which messages workers have received."""

    packed: Annotated[bytes, blob(0, RECEIPTS_MAX * RECEIPT.size)]
    """A `RECEIPT` each."""

    KIND: ClassVar[Kind] = Kind.RECEIPTS
    BYTES_MAX: ClassVar[int] = RECEIPTS_MAX * RECEIPT.size + SMALL_BYTES_MAX

    @classmethod
    def of(cls, receipts: Iterable[tuple[int, int, int]]) -> "Receipts":
        """Return the one for so many messages: branch, stream and number of each."""
        return cls(b"".join(RECEIPT.pack(*each) for each in receipts))

    @property
    def all(self) -> list[tuple[int, int, int]]:
        """Branch, stream, number of each; raises `InvalidMessageError` for a part of one."""
        if len(self.packed) % RECEIPT.size:
            raise InvalidMessageError(f"Receipts of {len(self.packed)} bytes")
        return [
            (branch, stream, number) for branch, stream, number in RECEIPT.iter_unpack(self.packed)
        ]


@dataclass(frozen=True, slots=True)
class Returned(Record):
    """A parent says how many bytes of what a worker has sent it does not keep any more."""

    branch: BranchNumber
    charge: Annotated[int, integer(1, 2**63)]

    KIND: ClassVar[Kind] = Kind.RETURNED


@dataclass(frozen=True, slots=True)
class Feed(Record):
    """A parent sends a relay the log from here on."""

    number: Annotated[int, integer(1, 2**32 - 1)]
    """Of the feed: the one before is over."""
    place: Annotated[Place, record(Place)]
    """The log is sent after this place, once the relay has said HAVE."""
    versions: Versions
    """Of the log there."""
    elements: Annotated[int, integer(1, ELEMENTS_MAX)]
    """Of the replica."""
    has_rounds: bool = False

    KIND: ClassVar[Kind] = Kind.FEED
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX + SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Fed(Record):
    """A branch is sent the log by the relay from a position on."""

    feed: Annotated[int, integer(1, 2**32 - 1)]
    index: Annotated[int, integer(1, 2**32 - 1)]
    """How many the feed has had with this one."""
    branch: BranchNumber
    position: Position
    """Up to here its parent has sent it the log."""
    told: Position
    """Where the last message to it ended: from there on, there are only updates of its own."""
    number: Count
    """In the stream of the log, messages to it have to have this number or a higher one."""
    rank: Annotated[int, RANK] | None = None
    """Whose updates are not sent to it by themselves; None for a relay."""

    KIND: ClassVar[Kind] = Kind.FED


@dataclass(frozen=True, slots=True)
class Unfed(Record):
    """A relay cannot send a branch the log from where it was told to: its log has a sum there."""

    feed: Annotated[int, integer(1, 2**32 - 1)]
    branch: BranchNumber

    KIND: ClassVar[Kind] = Kind.UNFED


@dataclass(frozen=True, slots=True)
class Have(Record):
    """A relay says up to where all its members have the log."""

    feed: Annotated[int, integer(1, 2**32 - 1)]
    position: Position
    index: Count
    """The last FED that it has acted on."""
    number: Count
    """In the stream of the log, messages of this feed have to have this number or a higher one."""

    KIND: ClassVar[Kind] = Kind.HAVE


@dataclass(frozen=True, slots=True)
class Elsewhere(Record):
    """A relay tells a worker where else the run can be reached, should the relay be lost."""

    masters: Annotated[tuple[str, ...], listing(text(ADDRESS_CHARACTERS_MAX), ELSEWHERE_MAX)] = (
        field(default_factory=tuple)
    )
    """``host:port`` of each."""

    KIND: ClassVar[Kind] = Kind.ELSEWHERE
