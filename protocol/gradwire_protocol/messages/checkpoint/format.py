r"""Checkpoints: a run as a file, from which a master resumes and a model is loaded.

A checkpoint is a safetensors file, so other programs can load it, too::

    offset  bytes  field
    0       8      length h of the header
    8       h      header: JSON in UTF-8, then spaces, so that 8 + h is a multiple of 64
    8 + h          the parameters, tensor by tensor, and what an optimizer keeps
                   the buffers

The header, which has no line breaks::

    {"__metadata__":{"gradwire_checkpoint":"2","sha256":"<64 hexadecimal digits>","run":"mnist",
    "quantum_exponent":"-24","versions":"[[0,5],[2,7]]",
    "place":"{\"log\":{\"id\":4294968763,\"base\":0,\"parts_at\":0},\"position\":12}","works":"[]",
    "mode":"sharing","finished":"false","digest":"<16 hexadecimal digits>","buffers":"[4,1,0,0]"},
    "weights":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
    "bias":{"dtype":"F64","shape":[1],"data_offsets":[24,32]},
    "running_mean":{"dtype":"F32","shape":[1],"data_offsets":[32,36]}}

The first tensors are those of the layout, in its order and without gaps, each of the type in which
all of its numbers are exact: see `values`. So a model that loads it gets what it computes with, and
a master the integers.

`versions` are pairs of a rank and its last sequence. `works` has a record (`work.WorkState`) for
each work whose items are granted: which are done. `mode` is the text of a mode, as in
``averaging(every=16)``. `buffers` has the bytes of a float among the statistics, and how many
buffers are floats that are averaged, integers that are, and others; these stand last. If workers
have logged anything, `series` follows, in base64: only a master reads it. It is no tensor, so that
a model takes all that are there.

The reader packs the contents of the header again and refuses a header with other bytes. So the
header has no duplicate names, gaps, overlaps or other types, and no other form of JSON. It does the
same with the parameters.

The SHA-256 covers everything behind its own digits. The bytes before them are constant, except h,
and the length of the file has to fit the header. So a changed byte stays undetected once in 2^256
times. docs/decisions/checkpoint-format.md has the reasons for SHA-256 and against compression.
"""

import hashlib
import json
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import Annotated, Final, NamedTuple

import numpy as np

from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.errors import UsageError
from gradwire_protocol.limits import BUFFER_LAYOUT_BYTES_MAX, BUFFERS_BYTES_MAX, MIB
from gradwire_protocol.messages.admission import Place, QuantumExponent
from gradwire_protocol.messages.buffers.layout import (
    BUFFER_TENSORS_MAX,
    NO_BUFFERS,
    WIDTHS,
    BufferLayout,
    BufferTensor,
)
from gradwire_protocol.messages.checkpoint.values import (
    PIECE_BYTES,
    Int32Array,
    Kinds,
    decode,
    encoded,
    kinds_of,
)
from gradwire_protocol.messages.fields import RunName, Versions
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.layout import (
    DIMENSIONS_MAX,
    ELEMENTS_MAX,
    LAYOUT_BYTES_MAX,
    METADATA,
    NAME_CHARACTERS_MAX,
    TENSORS_MAX,
    Layout,
    Tensor,
)
from gradwire_protocol.messages.modes.kept_state import STATE
from gradwire_protocol.messages.modes.mode import LAST_STEP, Mode, parse_mode
from gradwire_protocol.messages.schema import (
    SHOWN_MAX,
    SMALL_BYTES_MAX,
    Record,
    blob,
    integer,
    listing,
    record,
)
from gradwire_protocol.messages.work import (
    OPEN_MAX,
    WORK_NAME_CHARACTERS_MAX,
    WORKS_MAX,
    WorkState,
)

LENGTH: Final = struct.Struct("<Q")

SIGNATURE: Final = f'{{"{METADATA}":{{"gradwire_checkpoint":"2","sha256":"'.encode()
"""Start of every header. The 2 is the version of the format."""

CHECKSUM_DIGITS: Final = 64
CHECKSUM_AT: Final = LENGTH.size + len(SIGNATURE)
CHECKED_AT: Final = CHECKSUM_AT + CHECKSUM_DIGITS
"""End of the checksum in the file, and start of the bytes that it covers."""

ALIGNMENT: Final = 64
"""Alignment of the replica in the file: a cache line, and more than any array requires."""

METADATA_CHARACTERS_MAX: Final = (
    SMALL_BYTES_MAX
    + 20 * RANKS_MAX
    + WORKS_MAX * (2 * WORK_NAME_CHARACTERS_MAX + 200 + 13 * OPEN_MAX)
)
"""Longest metadata: 0.9 MiB; a rank and its sequence are at most 18 characters, the number of an
item and a comma 13. Unpacked JSON can take 25 times its length in memory, so no longer text is
unpacked at once."""

SERIES_BYTES_MAX: Final = 12 * MIB
"""Most bytes with what workers have logged."""

HEADER_BYTES_MAX: Final = (
    3 * (LAYOUT_BYTES_MAX + BUFFER_LAYOUT_BYTES_MAX)
    + METADATA_CHARACTERS_MAX
    + 4 * SERIES_BYTES_MAX // 3
)
"""Holds the largest layouts and the longest version vector, 8.4 MiB, and what was logged, 16 MiB. A
name with a backslash before each character is twice as long as in a message, the lengths in a shape
are 2.2 times as long, and 16,384 tensors add less than 60 bytes each."""

HEAD_BYTES_MAX: Final = LENGTH.size + HEADER_BYTES_MAX
"""Most bytes before the replica. They suffice to check everything but the replica, and to find the
right length of the file, before memory for the replica is allocated."""

FILE_BYTES_MAX: Final = HEAD_BYTES_MAX + 8 * (ELEMENTS_MAX + BUFFERS_BYTES_MAX)
"""File with the largest replica: slightly more than 16 GiB."""

TENSORS_IN_FILE_MAX: Final = TENSORS_MAX + 3 * BUFFER_TENSORS_MAX


class CheckpointError(UsageError):
    """A file that is no checkpoint, is damaged, or does not fit the run. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Checkpoint(Record):
    """The contents of a checkpoint's header."""

    run: RunName
    layout: Layout
    quantum_exponent: QuantumExponent
    """The quantum is two to this power."""
    versions: Versions
    """The updates in the replica: by rank, the sequence of the last one."""
    finished: bool
    """Whether the run was finished: no update will follow."""
    digest: Annotated[int, integer(0, 2**64 - 1)]
    """Digest of the replica, as the codec computes it."""
    place: Annotated[Place, record(Place)] = field(default_factory=Place)
    """That of the replica in the log of its run."""
    works: Annotated[tuple[WorkState, ...], listing(record(WorkState), WORKS_MAX)] = ()
    """Which items were trained on, with updates that are all in the replica."""
    mode: Mode = field(default_factory=Mode)
    """That of the run. In one with rounds, `versions` also say what was contributed."""
    buffers: Annotated[BufferLayout, record(BufferLayout)] = NO_BUFFERS
    """What the module has besides its parameters."""
    series: Annotated[bytes, blob(0, SERIES_BYTES_MAX)] = b""
    """What workers have logged."""

    @property
    def replica_elements(self) -> int:
        """How many of the integers are the replica; what follows is DiLoCo's last step, if any."""
        return sum(each.elements for each in self.layout.tensors if each.name != LAST_STEP)

    @property
    def updates(self) -> int:
        """Number of updates in the replica."""
        return sum(self.versions.values())


# Writing.


def pieces_of(
    checkpoint: Checkpoint, values: Payload, buffers: bytes = b""
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file, piece by piece, without copying the replica as a whole.

    Parameters
    ----------
    values : bytes-like
        The replica, little-endian int32. It must not change until the last piece was taken.
    buffers : bytes
        The values of the buffers, as `BufferLayout.to_file` returns them.
    """
    quanta: Int32Array = np.frombuffer(values, "<i4")
    assert len(quanta) == checkpoint.layout.elements, "the replica is that of the layout"
    assert len(buffers) == checkpoint.buffers.bytes_in_file, "the buffers are those of the layout"
    kinds = kinds_of(checkpoint.layout, quanta)
    header = _header_of(checkpoint, kinds)
    assert len(header) <= HEADER_BYTES_MAX, "each of its fields has a limit"
    head = LENGTH.pack(len(header)) + header

    def body() -> Iterator[memoryview]:
        yield from encoded(quanta, checkpoint.layout, kinds, checkpoint.quantum_exponent)
        yield from _pieces(memoryview(buffers))

    checksum = _checksum(chain((memoryview(head)[CHECKED_AT:],), body()))
    yield head[:CHECKSUM_AT] + checksum + head[CHECKED_AT:]
    yield from body()


def _header_of(
    checkpoint: Checkpoint, kinds: Kinds, checksum: str = "0" * CHECKSUM_DIGITS
) -> bytes:
    metadata = {
        "gradwire_checkpoint": "2",
        "sha256": checksum,
        "run": checkpoint.run,
        "quantum_exponent": _json(checkpoint.quantum_exponent),
        "versions": _json(list(checkpoint.versions.items())),
        "place": _json(checkpoint.place.to_plain()),
        "works": _json([each.to_plain() for each in checkpoint.works]),
        "mode": str(checkpoint.mode),
        "finished": _json(checkpoint.finished),
        "digest": f"{checkpoint.digest:016x}",
        "buffers": _json(checkpoint.buffers.counts),
    }
    if checkpoint.series:
        metadata["series"] = b64encode(checkpoint.series).decode()
    members: dict[str, object] = {METADATA: metadata}
    end = 0
    named: Iterator[tuple[Tensor | BufferTensor, str]] = chain(
        zip(checkpoint.layout.tensors, kinds, strict=True), checkpoint.buffers.in_file()
    )
    for tensor, kind in named:
        start, end = end, end + WIDTHS[kind] * tensor.elements
        members[tensor.name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": (start, end)}
    header = _json(members).encode()
    return header + b" " * (-(LENGTH.size + len(header)) % ALIGNMENT)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# Reading.


class Contents(NamedTuple):
    """What a file has."""

    checkpoint: Checkpoint
    values: memoryview
    """The replica, little-endian int32."""
    buffers: memoryview
    """The values of the buffers, for `BufferLayout.from_file`."""


def parse_head(data: Payload, size: int) -> tuple[Checkpoint, int]:
    """Parse the bytes before the replica; return their contents, and the start of the replica.

    Parameters
    ----------
    data : bytes-like
        The first bytes of a file: all of it, or at least `HEAD_BYTES_MAX`.
    size : int
        Length of the file.

    Raises
    ------
    CheckpointError
        If the file is no checkpoint, or has another length than its header requires.
    """
    checkpoint, _, start = _parse_head(data, size)
    return checkpoint, start


def _parse_head(data: Payload, size: int) -> tuple[Checkpoint, Kinds, int]:
    view = memoryview(data).cast("B")
    if bytes(view[LENGTH.size : CHECKSUM_AT]) != SIGNATURE:
        raise CheckpointError(
            f"it is no checkpoint: it begins with {bytes(view[:CHECKSUM_AT])!r}, and not with 8 "
            f"bytes and {SIGNATURE!r}"
        )
    (header_bytes,) = LENGTH.unpack_from(view)
    if header_bytes > HEADER_BYTES_MAX:
        raise CheckpointError(
            f"it has a header of {header_bytes} bytes; the limit is {HEADER_BYTES_MAX}"
        )
    start = LENGTH.size + header_bytes
    if len(view) < start:
        raise CheckpointError(f"it ends after {len(view)} bytes, within its header of {start}")
    try:
        checkpoint, kinds = _parse_header(bytes(view[LENGTH.size : start]))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"its header is damaged: {error}") from None
    tensors = zip(checkpoint.layout.tensors, kinds, strict=True)
    size_due = start + sum(WIDTHS[kind] * tensor.elements for tensor, kind in tensors)
    size_due += checkpoint.buffers.bytes_in_file
    if size != size_due:
        raise CheckpointError(
            f"it has {size} bytes; with {checkpoint.layout.elements} parameters and "
            f"{checkpoint.buffers.bytes_in_file} bytes of buffers it takes {size_due}"
        )
    return checkpoint, kinds, start


_TENSOR: Final = re.compile(
    rf',("(?:[^"\\]|\\.){{0,{NAME_CHARACTERS_MAX}}}"):{{"dtype":"(\w+)",'
    rf'"shape":(\[[-.,\w]{{0,{11 * DIMENSIONS_MAX}}}\]),"data_offsets"'
)
"""A tensor in a header: name, type and shape. Its offsets follow from the tensors before it."""


_SERIES: Final = re.compile(r',"series":"([\w+/=]*)"')
"""What was logged. A quote within the name of a run or a tensor has a backslash before it."""


def _parse_header(header: bytes) -> tuple[Checkpoint, Kinds]:
    """Parse a header; only parts whose length is limited are unpacked."""
    text = header.decode()
    series = _SERIES.search(text)
    if series is not None:
        text = text[: series.start()] + text[series.end() :]
    start = SIGNATURE.index(b":") + 1
    window = text[start : start + METADATA_CHARACTERS_MAX]
    metadata, length = json.JSONDecoder().raw_decode(window)
    found = list(islice(_TENSOR.finditer(text, start + length), TENSORS_IN_FILE_MAX + 1))
    tensors = [{"name": json.loads(each[1]), "shape": json.loads(each[3])} for each in found]
    kinds = [each[2] for each in found]
    del metadata["gradwire_checkpoint"], metadata["sha256"]
    fields = {name: _parse_field(name, str(value)) for name, value in metadata.items()}
    counts = fields.pop("buffers", NO_BUFFERS.counts)
    if not isinstance(counts, list) or len(counts) != len(NO_BUFFERS.counts):
        raise ValueError(f"buffers: {str(counts)[:SHOWN_MAX]} are not four numbers")
    model = max(len(tensors) - sum(each for each in counts[1:] if type(each) is int), 0)
    try:
        buffers = BufferLayout.of_file(tensors[model:], kinds[model:], counts)
    except ValueError as error:
        raise ValueError(f"buffers: {error}") from None
    plain = {
        **fields,
        "layout": {"tensors": tensors[:model]},
        "buffers": buffers.to_plain(),
        "series": b"" if series is None else b64decode(series[1]),
    }
    checkpoint = Checkpoint.from_plain(plain)
    check_names(checkpoint)
    of_model = tuple(
        "I32" if tensor.name.startswith(STATE) else kind if kind == "F64" else "F32"
        for tensor, kind in zip(checkpoint.layout.tensors, kinds, strict=False)
    )
    digits = text[CHECKSUM_AT - LENGTH.size : CHECKED_AT - LENGTH.size]
    expected = _header_of(checkpoint, of_model, digits)
    if header != expected:
        at = next(i for i, (one, other) in enumerate(zip_longest(header, expected)) if one != other)
        around = slice(at - SHOWN_MAX // 2, at + SHOWN_MAX)
        raise ValueError(f"around byte {at} it has {header[around]!r}, not {expected[around]!r}")
    return checkpoint, of_model


def check_names(checkpoint: Checkpoint) -> None:
    """Refuse names that two tensors of a file would have: `ValueError`."""
    names = {METADATA} | {tensor.name for tensor in checkpoint.layout.tensors}
    for tensor in checkpoint.buffers.tensors:
        if tensor.name in names:
            raise ValueError(f"the name {tensor.name!r} is taken")
        names.add(tensor.name)


def _parse_field(name: str, text: str) -> object:
    try:
        if name == "digest":
            return int(text, 16)
        if name == "mode":
            return parse_mode(text).to_plain()
        return text if name == "run" else json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def parse(data: Payload) -> Contents:
    """Parse a whole file; return the contents of its header, the replica and the buffers.

    The replica takes the place of the parameters in `data`, where that can be written to. The
    caller has to check that it has the `digest` of the header.

    Raises
    ------
    CheckpointError
        If the file is no checkpoint, or any byte of it was changed.
    """
    view = memoryview(data).cast("B")
    checkpoint, kinds, start = _parse_head(view, len(view))
    found, wanted = _checksum(_pieces(view[CHECKED_AT:])), bytes(view[CHECKSUM_AT:CHECKED_AT])
    if found != wanted:
        raise CheckpointError(
            f"it is damaged: the checksum of its contents is {found!r}, its header has {wanted!r}"
        )
    buffers = view[len(view) - checkpoint.buffers.bytes_in_file :]
    if view.readonly:
        view = memoryview(bytearray(view))
    try:
        quanta = decode(view[start:], checkpoint.layout, kinds, checkpoint.quantum_exponent)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    return Contents(checkpoint, quanta, buffers)


def _pieces(view: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(view), PIECE_BYTES):
        yield view[at : at + PIECE_BYTES]


def _checksum(pieces: Iterable[memoryview]) -> bytes:
    # Piece by piece, because Ctrl-C has no effect within one `update`.
    checksum = hashlib.sha256()
    for piece in pieces:
        checksum.update(piece)
    return checksum.hexdigest().encode()
