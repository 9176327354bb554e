"""Checkpoint files: the input is one, or the contents of one before its checksum.

Nearly no input has the checksum that belongs to it, so every one is read a second time with that
behind it: else nothing beyond it would ever be reached. Whatever is accepted is written again as
the same checkpoint, with the same replica.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from gradwire_protocol.messages.checkpoint import (
    ALIGNMENT,
    FORMAT_VERSION,
    MAGIC,
    PRELUDE,
    Checkpoint,
    CheckpointError,
    parse,
    parse_head,
    pieces_of,
)
from gradwire_protocol.messages.layout import Layout, Tensor

BYTES_MAX: Final = 1_024


def check(data: bytes) -> None:
    """Read a file."""
    check_file(data)
    check_file(data + hashlib.sha256(data).digest())


def check_file(data: bytes) -> None:
    """Read a file, and what is written of what was read."""
    try:
        head = parse_head(data, len(data))
    except CheckpointError:
        refuse(data)
        return
    assert head.size == len(data)
    assert head.start % ALIGNMENT == 0
    try:
        checkpoint, values = parse(data)
    except CheckpointError:
        return  # its checksum
    assert checkpoint == head.checkpoint
    again = b"".join(pieces_of(checkpoint, values))
    assert len(again) <= len(data)
    assert parse(again) == (checkpoint, values)


def refuse(data: bytes) -> None:
    """Read a file whose head is not in order."""
    try:
        parse(data)
    except CheckpointError:
        return
    raise AssertionError("what has no head has a body")


def seeds() -> Iterable[bytes]:
    """Return checkpoints, with and without their checksum, and some that are damaged."""
    layout = Layout((Tensor("weights", (3, 4)), Tensor("bias", (4,)), Tensor("scale", ())))
    values = b"".join(i.to_bytes(4, "little", signed=True) for i in range(-8, 9))
    small = Layout((Tensor("array", (1,)),))
    for checkpoint, replica in (
        (Checkpoint("run", layout, -24, {0: 5, 7: 2**32 - 1}, False, 2**64 - 1), values),
        (Checkpoint("another", small, 0, {}, True, 0), bytes(4)),
    ):
        *contents, checksum = pieces_of(checkpoint, replica)
        whole = b"".join(contents)
        yield whole
        yield whole + checksum
        yield whole[:-1]
        yield whole[:30]
    yield MAGIC
    yield PRELUDE.pack(MAGIC, FORMAT_VERSION + 1, 0)
    yield PRELUDE.pack(MAGIC, FORMAT_VERSION, 2**32 - 1)
    packed = Checkpoint("run", small, 0, {}, False, 0).pack()
    huge = packed.replace(b"\x91\x01", b"\x91\xce\x40\x00\x00\x00")  # 2^30 elements
    assert huge != packed
    yield PRELUDE.pack(MAGIC, FORMAT_VERSION, len(huge)) + huge
