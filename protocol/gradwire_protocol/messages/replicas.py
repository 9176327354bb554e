"""Messages about replicas: their blocks, their contents, their comparison."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from gradwire_protocol.messages.fields import (
    BLOCK_ELEMENTS,
    BLOCKS_MAX,
    DIGEST_BYTES,
    VERSIONS_BYTES_MAX,
    Position,
    Versions,
)
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Record, blob, integer, listing


@dataclass(frozen=True, slots=True)
class Contents(Record):
    """A worker says which updates are in the replica that it sends to a restarted master.

    It is the replica at the position of which its JOIN says that the worker has it.
    """

    versions: Versions

    KIND: ClassVar[Kind] = Kind.CONTENTS
    BYTES_MAX: ClassVar[int] = VERSIONS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Digest(Record):
    """A worker reports the digest of its replica."""

    position: Position
    digest: Annotated[int, integer(0, 2**64 - 1)]
    """Digest of the replica at this position of the log: without what the worker added since."""

    KIND: ClassVar[Kind] = Kind.DIGEST


@dataclass(frozen=True, slots=True)
class Blocks(Record):
    """The master sends the digest of every block, so that a worker finds the blocks that differ."""

    position: Position
    versions: Versions
    """The updates in the replica, the worker's own included."""
    digests: Annotated[bytes, blob(DIGEST_BYTES, DIGEST_BYTES * BLOCKS_MAX)]
    """Little-endian, 8 bytes each."""

    KIND: ClassVar[Kind] = Kind.BLOCKS
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + VERSIONS_BYTES_MAX + DIGEST_BYTES * BLOCKS_MAX


@dataclass(frozen=True, slots=True)
class Want(Record):
    """A worker asks for blocks of the replica described by BLOCKS."""

    blocks: Annotated[tuple[int, ...], listing(integer(0, BLOCKS_MAX - 1), BLOCKS_MAX)]
    """Numbers of the blocks; none if all are equal."""

    KIND: ClassVar[Kind] = Kind.WANT
    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX + 3 * BLOCKS_MAX


@dataclass(frozen=True, slots=True)
class Snapshot(Record):
    """A block of the replica."""

    start: Annotated[int, integer(0, ELEMENTS_MAX)]
    values: Annotated[bytes, blob(1, 4 * BLOCK_ELEMENTS)]
    """Little-endian int32, plain or packed."""

    KIND: ClassVar[Kind] = Kind.SNAPSHOT
    BYTES_MAX: ClassVar[int] = 4 * BLOCK_ELEMENTS + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0
