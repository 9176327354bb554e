"""Checkpoint files: the input is one, or what a header has behind its checksum.

Nearly no input has the checksum that belongs to it, nor the length of its header. So every one is
read twice more: with the right checksum in it, and as a header in a file of one parameter that has
both. Whatever is accepted is what would be written.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from gradwire_protocol.messages.checkpoint.format import (
    ALIGNMENT,
    CHECKED_AT,
    CHECKSUM_AT,
    LENGTH,
    SIGNATURE,
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
    check_file(sealed(data))
    header = SIGNATURE + bytes(CHECKED_AT - CHECKSUM_AT) + data
    header += b" " * (-(LENGTH.size + len(header)) % ALIGNMENT)
    check_file(sealed(LENGTH.pack(len(header)) + header + bytes(4)))


def sealed(data: bytes) -> bytes:
    """Return a file with the checksum of its contents."""
    checksum = hashlib.sha256(data[CHECKED_AT:]).hexdigest().encode()
    return data[:CHECKSUM_AT] + checksum + data[CHECKED_AT:]


def check_file(data: bytes) -> None:
    """Read a file, and what is written of what was read."""
    try:
        head, start = parse_head(data, len(data))
    except CheckpointError:
        refuse(data)
        return
    assert start % ALIGNMENT == 0
    try:
        checkpoint, values, buffers = parse(data)
    except CheckpointError:
        return  # its checksum
    assert checkpoint == head
    assert b"".join(pieces_of(checkpoint, values, bytes(buffers))) == data


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
    values = b"".join((i << i % 30).to_bytes(4, "little", signed=True) for i in range(-8, 9))
    small = Layout((Tensor("array", (1,)),))
    for checkpoint, replica in (
        (Checkpoint("run", layout, -24, {0: 5, 7: 2**32 - 1}, False, 2**64 - 1), values),
        (Checkpoint("another", small, 0, {}, True, 0), bytes(4)),
    ):
        whole = b"".join(pieces_of(checkpoint, replica))
        yield whole
        yield whole[:-1]
        yield whole[:200]
        yield whole[CHECKED_AT : whole.index(b"}}") + 2]
    header = whole[CHECKED_AT : whole.index(b"}}") + 2]
    yield header.replace(b"F32", b"F64")
    yield header.replace(b"[4,0,0,0]", b"[4,0,1,0]").replace(b"F32", b"I32")
    yield header.replace(b'"shape":[', b'"shape":[0,')
    yield header.replace(b'"versions":"[]"', b'"versions":"[[0,5],[7,1e9]]"')
    bias = b'"bias":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
    yield header.replace(b'"array"', bias + b'"array"').replace(b"[0,4]}}", b"[4,8]}}")
    yield LENGTH.pack(0) + SIGNATURE
    yield LENGTH.pack(2**64 - 1) + SIGNATURE
