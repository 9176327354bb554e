"""Checkpoints: a run as a file, from which a master goes on and a model is loaded.

::

    offset  bytes  field
    0       8      magic: 93 47 57 43 4b 50 54 0a, GWCKPT but for its ends
    8       4      format version: 1
    12      4      length h of the header
    16      h      header: a `Checkpoint`, a msgpack map checked field by field (see `schema`)
    16 + h  0-63   zeros, up to a multiple of 64
            4 N    the replica, little-endian int32; the layout in the header says what N is
            32     SHA-256 of everything before

Integers are unsigned and little-endian. No text file begins with the magic, and whatever changes
the ends of lines changes it. The replica begins where arrays like to: it can be used where it was
read. A file is whole if it is as long as its header says and its checksum is right; then every byte
is as it was written, but for one chance in 2^256.

SHA-256, because processors have instructions for it: 1.1 GB/s on one core of an AMD EPYC, where
BLAKE2b of the same standard library does 0.4; `sha256sum` computes it, too. A CRC of 32 bits would
miss one damage in four billion, which for files of gigabytes on many machines is not never. It has
no key: who can write the file can write its checksum.

Nothing is compressed: most bits of trained parameters in quanta of 2^-24 are noise. zlib at its
quickest makes them a fifth smaller, at 21 MB/s on the same core: writing that fifth takes a disk a
hundredth of the time.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.errors import InvalidMessageError, UsageError
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.fields import VERSIONS_BYTES_MAX
from gradwire_protocol.messages.layout import ELEMENTS_MAX, LAYOUT_BYTES_MAX, Layout
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Check, Record, boolean, integer
from gradwire_protocol.messages.snapshots import ELEMENT_BYTES

MAGIC: Final = b"\x93GWCKPT\n"
FORMAT_VERSION: Final = 1
PRELUDE: Final = struct.Struct("<8sII")

ALIGNMENT: Final = 64
"""Of the replica in the file: a line of cache, and more than any array asks for."""

CHECKSUM_BYTES: Final = 32

HEADER_BYTES_MAX: Final = LAYOUT_BYTES_MAX + VERSIONS_BYTES_MAX + SMALL_BYTES_MAX
"""The largest layout and the longest version vector: 2.1 MiB."""

HEAD_BYTES_MAX: Final = PRELUDE.size + HEADER_BYTES_MAX + ALIGNMENT
"""What stands before the replica. So much has to be read of a file to know all of it but the
replica, and how long it should be, before there is memory for any more."""

FILE_BYTES_MAX: Final = HEAD_BYTES_MAX + ELEMENT_BYTES * ELEMENTS_MAX + CHECKSUM_BYTES
"""Of the largest replica: 8 GiB, and some."""

PIECE_BYTES: Final = MIB
"""How much of a replica is checked, or handed on to be written, at once."""


class CheckpointError(UsageError):
    """A file that is no checkpoint, is damaged, or does not fit. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Checkpoint(Record):
    """What a checkpoint says of the replica in it."""

    run: str
    """Name of the run."""
    layout: Layout
    quantum_exponent: int
    """The quantum is two to this power."""
    versions: Mapping[int, int]
    """Which updates the replica contains: by rank, the sequence of the last one."""
    finished: bool
    """Whether the run was finished: no update will follow."""
    digest: int
    """Of the replica, as the codec computes it."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **{
            name: Welcome.CHECKS[name] for name in ("run", "layout", "quantum_exponent", "versions")
        },
        "finished": boolean,
        "digest": integer(0, 2**64 - 1),
    }
    BYTES_MAX: ClassVar[int] = HEADER_BYTES_MAX

    @property
    def updates(self) -> int:
        """How many updates the replica contains."""
        return sum(self.versions.values())


class Head(NamedTuple):
    """What is known of a checkpoint before its replica is read."""

    checkpoint: Checkpoint
    start: int
    """Where the replica begins."""

    @property
    def end(self) -> int:
        """Where the replica ends, and the checksum begins."""
        return self.start + ELEMENT_BYTES * self.checkpoint.layout.elements

    @property
    def size(self) -> int:
        """Length of the file."""
        return self.end + CHECKSUM_BYTES


# Writing.


def pieces_of(checkpoint: Checkpoint, values: Payload) -> Iterator[bytes | memoryview]:
    """Return the bytes of a file, piece by piece; nothing of the replica is copied.

    Parameters
    ----------
    checkpoint : Checkpoint
    values : bytes-like
        The replica, little-endian int32. It must not change before the last piece was taken.
    """
    replica = memoryview(values).cast("B")
    elements = checkpoint.layout.elements
    assert len(replica) == ELEMENT_BYTES * elements, "the replica is that of the layout"
    header = checkpoint.pack()
    assert len(header) <= HEADER_BYTES_MAX, "each of its fields has a limit"
    head = PRELUDE.pack(MAGIC, FORMAT_VERSION, len(header)) + header
    head += bytes(-len(head) % ALIGNMENT)
    checksum = _checksum((memoryview(head),))
    yield head
    for piece in _pieces(replica):
        checksum.update(piece)
        yield piece
    yield checksum.digest()


# Reading.


def parse_head(data: Payload, size: int) -> Head:
    """Read what stands before the replica.

    Parameters
    ----------
    data : bytes-like
        The first bytes of a file: all of it, or at least `HEAD_BYTES_MAX`.
    size : int
        Length of the file.

    Raises
    ------
    CheckpointError
        If it is no checkpoint, or not as long as a file with this header is.
    """
    view = memoryview(data).cast("B")
    if bytes(view[: len(MAGIC)]) != MAGIC[:size]:
        raise CheckpointError(f"it is no checkpoint: it begins with {bytes(view[:8])!r}")
    if len(view) < PRELUDE.size:
        raise CheckpointError(f"it ends after {len(view)} bytes; {PRELUDE.size} are the least")
    _, version, header_bytes = PRELUDE.unpack_from(view)
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"it has format {version}, and this version of gradwire reads {FORMAT_VERSION}"
        )
    if header_bytes > HEADER_BYTES_MAX:
        raise CheckpointError(
            f"it has a header of {header_bytes} bytes; the limit is {HEADER_BYTES_MAX}"
        )
    end = PRELUDE.size + header_bytes
    if len(view) < end:
        raise CheckpointError(f"it ends after {len(view)} bytes, within its header of {end}")
    try:
        checkpoint = Checkpoint.parse(view[PRELUDE.size : end])
    except InvalidMessageError as error:
        raise CheckpointError(f"its header is damaged: {error}") from None
    head = Head(checkpoint, end + -end % ALIGNMENT)
    if head.size != size:
        raise CheckpointError(
            f"it has {size} bytes; with {checkpoint.layout.elements} parameters it takes "
            f"{head.size}"
        )
    return head


def parse(data: Payload) -> tuple[Checkpoint, memoryview]:
    """Read a whole file; return what it says, and the replica where it stands in `data`.

    Whether the replica has the digest that the checkpoint says is for who can compute it.

    Raises
    ------
    CheckpointError
        If it is no checkpoint, or any byte of it is not as it was written.
    """
    view = memoryview(data).cast("B")
    head = parse_head(view, len(view))
    found = _checksum(_pieces(view[: head.end])).digest()
    if found != bytes(view[head.end :]):
        raise CheckpointError("its checksum is not that of its contents: it is damaged")
    return head.checkpoint, view[head.start : head.end]


def _pieces(view: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(view), PIECE_BYTES):
        yield view[at : at + PIECE_BYTES]


def _checksum(pieces: Iterable[memoryview]) -> "hashlib._Hash":
    # Piece by piece, so that Ctrl-C does not have to wait for all of it.
    checksum = hashlib.sha256()
    for piece in pieces:
        checksum.update(piece)
    return checksum
