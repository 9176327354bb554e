"""Messages about replicas: blocks of them, what they contain, and how they are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gradwire_protocol.messages.fields import (
    BLOCK_ELEMENTS,
    BLOCKS_MAX,
    DIGEST_BYTES,
    RANK,
    SEQUENCE,
    VERSIONS,
    VERSIONS_BYTES_MAX,
)
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Check, Record, blob, integer, listing


@dataclass(frozen=True, slots=True)
class Contents(Record):
    """A worker says which updates the replica contains that it sends to a master started anew."""

    versions: Mapping[int, int]
    """Its own included."""

    KIND: ClassVar[Kind] = Kind.CONTENTS
    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Recall(Record):
    """A master that was started anew asks for updates that a worker has said it keeps."""

    rank: int
    """Whose they are."""
    first: int
    last: int

    KIND: ClassVar[Kind] = Kind.RECALL
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "rank": RANK,
        "first": SEQUENCE,
        "last": SEQUENCE,
    }


@dataclass(frozen=True, slots=True)
class Digest(Record):
    """A worker says what its replica is."""

    versions: Mapping[int, int]
    """Its own included."""
    digest: int
    """Of the replica with these updates."""
    corrections: int
    """How many corrections are in it of those that came over this connection."""

    KIND: ClassVar[Kind] = Kind.DIGEST
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "versions": VERSIONS,
        "digest": integer(0, 2**64 - 1),
        "corrections": SEQUENCE,
    }
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Blocks(Record):
    """The master says what every block of the replica is, so that a worker finds which differ."""

    versions: Mapping[int, int]
    """The updates in it, the worker's own included."""
    digests: bytes
    """Little-endian, 8 bytes each."""

    KIND: ClassVar[Kind] = Kind.BLOCKS
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "versions": VERSIONS,
        "digests": blob(DIGEST_BYTES, DIGEST_BYTES * BLOCKS_MAX),
    }
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX + DIGEST_BYTES * BLOCKS_MAX


@dataclass(frozen=True, slots=True)
class Want(Record):
    """A worker asks for blocks of the replica that BLOCKS was about."""

    blocks: tuple[int, ...]
    """Their numbers; none where it has them all."""

    KIND: ClassVar[Kind] = Kind.WANT
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "blocks": listing(integer(0, BLOCKS_MAX - 1), BLOCKS_MAX)
    }
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + 3 * BLOCKS_MAX


@dataclass(frozen=True, slots=True)
class Snapshot(Record):
    """A block of the replica."""

    start: int
    values: bytes
    """Little-endian int32, or fewer bytes, of which it can be made."""

    KIND: ClassVar[Kind] = Kind.SNAPSHOT
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "start": integer(0, ELEMENTS_MAX),
        "values": blob(1, 4 * BLOCK_ELEMENTS),
    }
    BYTES_MAX: ClassVar[int] = 4 * BLOCK_ELEMENTS + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0
