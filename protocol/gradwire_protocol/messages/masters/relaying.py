"""Messages between a relay and the master that it stands before, its *parent*.

The peers of a relay are, for its parent, peers like all others: what they say and hear is
*carried*. Two things are not: their updates, which the relay sends on as one, and what becomes of
all updates, which is sent to the relay once, and by it to all its peers.

::

    peer ── any message ──▶ relay ── CARRIED ──▶ parent     and back, with ARRIVED in the end
    peer ── UPDATE ───────▶ relay ── MERGED ───▶ parent     and back: TAKEN
    peers ◀── UPDATE ────── relay ◀── UPDATE ─── parent     and back: REACHED

A relay may itself be a peer of a relay. Its parent carries what it asks the master, and is from
then on to it what the master is to the parent. So for a master, all peers of a tree are those of
the relays that have dialled it.

A relay may keep a replica. It says so in REACHED, and is then carried blocks without values, which
it fills in with those of the moment that FEED names.

FEED says from where on a relay sends a peer the parent's updates. RELAYING begins it all. OPENED
and ENDED say which peers there are.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeAlias

from gradwire_protocol.crypto.keys import KEY_ID_BYTES, Identity, Role
from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import (
    VERSIONS_BYTES_MAX,
    Clocks,
    HostPort,
    Rank,
    Reason,
    RunName,
    SequenceNumber,
    Versions,
    WorkerName,
)
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    blob,
    integer,
    listing,
    record,
)

PEERS_MAX: Final = 2**32 - 1
"""Peers that a relay counts: a thousand a second for 50 days."""

CARRIED_BYTES_MAX: Final = MESSAGE_BYTES_MAX - SMALL_BYTES_MAX
"""Largest message of a peer that a relay carries."""

MERGED_BYTES_MAX: Final = MESSAGE_BYTES_MAX // 2
"""Largest body of a sum. The rest has room for a span of each rank, and for what carries it."""

MERGED_PARTS_MAX: Final = 2**16
"""Parts of a sum: with bodies of that size, 128 GiB."""

MERGED_UPDATES_MAX: Final = 2**32 - 1
BASED_ON_MAX: Final = 2**63
"""What is more counts as so much."""

NumberOfPeer: TypeAlias = Annotated[int, integer(0, PEERS_MAX)]

_STREAM: Final = integer(0, 2**16 - 1)
_NUMBER: Final = integer(0, 2**32 - 1)


@dataclass(frozen=True, slots=True)
class Relaying(Record):
    """A relay asks to stand before this master; the answer, if it may."""

    address: HostPort
    """Where workers reach it."""
    master: HostPort
    """Where it has reached this master. In the answer: where the first master of all was reached,
    which is what workers dial that lose the relay."""
    other: HostPort | None = None
    """In the answer: the standby of this master, or its primary, to turn to if this one is lost."""

    KIND: ClassVar[Kind] = Kind.RELAYING


@dataclass(frozen=True, slots=True)
class KeyHolder(Record):
    """The peer of a connection, as its key has proved."""

    name: WorkerName
    role: Annotated[int, integer(min(Role), max(Role))]
    key_id: Annotated[bytes, blob(KEY_ID_BYTES, KEY_ID_BYTES)]

    @classmethod
    def of(cls, identity: Identity | None) -> "KeyHolder | None":
        """Return what is told of the peer of a connection."""
        if identity is None:
            return None
        return cls(identity.name, identity.role, identity.key_id)

    @property
    def identity(self) -> Identity:
        """The peer."""
        return Identity(self.name, Role(self.role), self.key_id)


@dataclass(frozen=True, slots=True)
class Opened(Record):
    """A peer has connected to the relay."""

    peer: NumberOfPeer
    """Number that the relay gives it, one more for each."""
    holder: KeyHolder | None
    """None where there are no keys."""
    via: NumberOfPeer | None
    """The peer, a relay, that it has connected to; None if that is this relay."""

    KIND: ClassVar[Kind] = Kind.OPENED


@dataclass(frozen=True, slots=True)
class Carried(Record):
    """A message of a peer, or for one."""

    peer: NumberOfPeer
    stream: Annotated[int, _STREAM]
    number: Annotated[int, _NUMBER]
    kind: Annotated[int, integer(0, 255)]
    payload: Annotated[bytes, blob(1, CARRIED_BYTES_MAX)]

    KIND: ClassVar[Kind] = Kind.CARRIED
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Arrived(Record):
    """A carried message was delivered to its peer."""

    peer: NumberOfPeer
    stream: Annotated[int, _STREAM]
    number: Annotated[int, _NUMBER]

    KIND: ClassVar[Kind] = Kind.ARRIVED


@dataclass(frozen=True, slots=True)
class Ended(Record):
    """The connection of a peer is over; from the parent: it is to be closed."""

    peer: NumberOfPeer
    code: Annotated[int, integer(0, 2**16 - 1)]
    reason: Reason
    by_peer: bool
    """Whether the peer has closed it."""

    KIND: ClassVar[Kind] = Kind.ENDED


@dataclass(frozen=True, slots=True)
class Feed(Record):
    """The relay is to send a peer all updates after these versions, and may merge its own."""

    peer: NumberOfPeer
    rank: Rank
    sequence: SequenceNumber
    """Of the last update of this rank that the parent has."""
    versions: Versions
    observes: bool
    """Whether the peer sends no updates, and nothing waits for it."""
    begins: bool
    """Whether the relay is sent updates from now on: it had no peer to send them to."""
    run: RunName
    elements: Annotated[int, integer(1, ELEMENTS_MAX)]
    """Of the replica."""
    mode: Annotated[Mode, record(Mode)]
    results: Rank
    """Of the updates that the parent relays, in this run and to none of another one."""

    KIND: ClassVar[Kind] = Kind.FEED
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX + 2 * SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class PeerSpan(Record):
    """The updates of one peer in a sum."""

    peer: NumberOfPeer
    rank: Rank
    after: SequenceNumber
    """The last update before them."""
    sequence: SequenceNumber
    """The last one of them."""


@dataclass(frozen=True, slots=True)
class Merged(Record):
    """Updates of several peers as one."""

    number: Annotated[int, _NUMBER]
    """Counts the sums of a relay. A parent is sent the next one when it has answered the last."""
    part: Annotated[int, integer(0, MERGED_PARTS_MAX - 1)]
    """Parts come in any order."""
    parts: Annotated[int, integer(1, MERGED_PARTS_MAX)]
    """How many the sum has."""
    spans: Annotated[tuple[PeerSpan, ...], listing(record(PeerSpan), RANKS_MAX)]
    """What is in the sum, one of each rank. Empty but in its last part."""
    updates: Annotated[int, integer(0, MERGED_UPDATES_MAX)]
    """How many there are in the whole sum."""
    based_on: Annotated[int, integer(0, BASED_ON_MAX)]
    """Total over them: how many updates of others the parameters contained."""
    clocks: Clocks
    """By rank: steps of its origin, if it has told that."""
    body: Annotated[bytes, blob(0, MERGED_BYTES_MAX)]

    KIND: ClassVar[Kind] = Kind.MERGED
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX

    @property
    def is_last(self) -> bool:
        """Whether it is the last part."""
        return self.part == self.parts - 1


@dataclass(frozen=True, slots=True)
class Taken(Record):
    """The answer to MERGED: whether the sum was taken."""

    number: Annotated[int, _NUMBER]
    done: bool
    """Otherwise it has updates that came another way, or of peers that are gone."""
    accepted: Versions
    """By rank, if it was not: the last update that the parent has of peers of this relay. Of ranks
    that are in the sum and not here, nothing is taken any more."""

    KIND: ClassVar[Kind] = Kind.TAKEN
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX + SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Reached(Record):
    """The updates that all peers of the relay have which do not observe."""

    feeds: Annotated[int, _NUMBER]
    """How many FEEDs the relay had then."""
    versions: Versions
    keeps_replica: bool
    """Whether it keeps a replica: blocks that are carried to its peers need no values."""

    KIND: ClassVar[Kind] = Kind.REACHED
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX + SMALL_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Aside(Record):
    """A peer is in quarantine: the relay keeps its updates aside. From the parent: release it."""

    peer: NumberOfPeer

    KIND: ClassVar[Kind] = Kind.ASIDE
