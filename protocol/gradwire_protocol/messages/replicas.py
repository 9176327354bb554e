"""Messages about replicas: their blocks, their contents, their comparison."""

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
    """A worker says which updates are in the replica that it sends to a restarted master."""

    versions: Mapping[int, int]
    """Its own included."""

    KIND: ClassVar[Kind] = Kind.CONTENTS
    CHECKS: ClassVar[Mapping[str, Check]] = {"versions": VERSIONS}
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Recall(Record):
    """A restarted master asks a worker for updates that it keeps."""

    rank: int
    """The origin of the updates."""
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
    """A worker reports the digest of its replica."""

    versions: Mapping[int, int]
    """Its own included."""
    digest: int
    """Digest of the replica with these updates."""
    corrections: int
    """How many corrections received over this connection are in it."""

    KIND: ClassVar[Kind] = Kind.DIGEST
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "versions": VERSIONS,
        "digest": integer(0, 2**64 - 1),
        "corrections": SEQUENCE,
    }
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Blocks(Record):
    """The master sends the digest of every block, so that a worker finds the blocks that differ."""

    versions: Mapping[int, int]
    """The updates in the replica, the worker's own included."""
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
    """A worker asks for blocks of the replica described by BLOCKS."""

    blocks: tuple[int, ...]
    """Numbers of the blocks; none if all are equal."""

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
    """Little-endian int32, plain or packed."""

    KIND: ClassVar[Kind] = Kind.SNAPSHOT
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "start": integer(0, ELEMENTS_MAX),
        "values": blob(1, 4 * BLOCK_ELEMENTS),
    }
    BYTES_MAX: ClassVar[int] = 4 * BLOCK_ELEMENTS + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0
