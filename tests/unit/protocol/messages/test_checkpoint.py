"""Checkpoints: what is written is read, and nothing else is."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.messages import checkpoint as module
from gradwire_protocol.messages.admission import QUANTUM_EXPONENT_MAX, QUANTUM_EXPONENT_MIN
from gradwire_protocol.messages.checkpoint import (
    ALIGNMENT,
    CHECKSUM_BYTES,
    FORMAT_VERSION,
    HEAD_BYTES_MAX,
    HEADER_BYTES_MAX,
    MAGIC,
    PRELUDE,
    Checkpoint,
    CheckpointError,
    parse,
    parse_head,
    pieces_of,
)
from gradwire_protocol.messages.fields import SEQUENCE_MAX
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.layout import Layout, Tensor
from support.checkpointing import VALUES, bytes_of, checkpoint_of
from support.wording import naming

WHOLE = bytes_of()


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shapes = draw(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=4))
    tensors = [Tensor(f"tensor {i}", tuple(shape)) for i, shape in enumerate(shapes)]
    return Layout((*tensors, Tensor("the last", (draw(st.integers(1, 9)),))))


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    return Checkpoint(
        run=draw(st.text(min_size=1, max_size=40).filter(str.isprintable)),
        layout=draw(layouts()),
        quantum_exponent=draw(st.integers(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX)),
        versions=draw(
            st.dictionaries(st.integers(0, 4_000), st.integers(0, SEQUENCE_MAX), max_size=5)
        ),
        finished=draw(st.booleans()),
        digest=draw(st.integers(0, 2**64 - 1)),
    )


def refusal(data: bytes) -> str:
    with pytest.raises(CheckpointError) as refused:
        parse(data)
    return str(refused.value)


def sealed(content: bytes) -> bytes:
    """Return contents with the checksum that belongs to them."""
    return content + hashlib.sha256(content).digest()


def with_header(
    header: bytes, *, length: int | None = None, version: int = FORMAT_VERSION
) -> bytes:
    """Return a file with this header and the usual replica."""
    head = PRELUDE.pack(MAGIC, version, len(header) if length is None else length) + header
    return sealed(head + bytes(-len(head) % ALIGNMENT) + VALUES.astype("<i4").tobytes())


@given(checkpoint=checkpoints(), seed=st.integers(0, 2**32 - 1))
def test_what_is_written_is_read(checkpoint: Checkpoint, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(-(2**31), 2**31, checkpoint.layout.elements).astype("<i4").tobytes()

    data = b"".join(pieces_of(checkpoint, values))
    read, replica = parse(bytearray(data))

    assert read == checkpoint
    assert bytes(replica) == values
    assert not replica.readonly, "the replica can be used where it was read"


def test_the_replica_stands_where_arrays_like_to_begin() -> None:
    assert [parse_head(data, len(data)).start % ALIGNMENT for data in every_length_of_header()] == (
        [0] * ALIGNMENT
    )


def every_length_of_header() -> list[bytes]:
    return [bytes_of(checkpoint_of(run="r" * (i + 1))) for i in range(ALIGNMENT)]


def test_a_replica_goes_out_piece_by_piece_and_uncopied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 8)
    values = bytearray(VALUES.astype("<i4").tobytes())

    head, *pieces, checksum = pieces_of(checkpoint_of(), values)

    assert [len(piece) for piece in pieces] == [8, 8, 8, 4]
    assert all(piece.obj is values for piece in pieces if isinstance(piece, memoryview))
    assert b"".join([head, *pieces, checksum]) == WHOLE


def test_a_checkpoint_knows_how_many_updates_it_contains() -> None:
    assert checkpoint_of(versions={0: 3, 7: 4}).updates == 7


# Damage.


def test_every_byte_that_is_changed_is_found() -> None:
    for at in range(len(WHOLE)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(WHOLE)
            damaged[at] ^= change
            assert refusal(bytes(damaged)), at


def test_every_file_that_ends_early_is_found() -> None:
    for size in range(len(WHOLE)):
        assert refusal(WHOLE[:size]), size


@given(st.binary(min_size=1, max_size=200))
def test_what_stands_behind_the_end_is_found(more: bytes) -> None:
    assert refusal(WHOLE + more) == naming(len(WHOLE) + len(more), 7, len(WHOLE))


@given(st.binary(max_size=300))
def test_anything_else_is_refused_and_nothing_else_raised(data: bytes) -> None:
    for each in (data, MAGIC + data, PRELUDE.pack(MAGIC, FORMAT_VERSION, len(data)) + data):
        assert refusal(each)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", (0, 16)),
        (MAGIC[:3], (3, 16)),
        (b"PK\x03\x04 a zip", ("no checkpoint", r"b'PK\x03\x04 a z'")),
        (WHOLE.replace(b"\n", b"\r\n", 1), ("no checkpoint", r"b'\x93GWCKPT\r'")),
        (with_header(b"", version=2), ("format", 2, 1)),
        (
            with_header(b"", length=HEADER_BYTES_MAX + 1),
            ("header", HEADER_BYTES_MAX + 1, HEADER_BYTES_MAX),
        ),
        (WHOLE[:40], (40, "header")),
        (with_header(b"\x80"), ("header", "Checkpoint", "fields")),
        (with_header(b"\xc1"), ("header", "Checkpoint")),
        (
            with_header(checkpoint_of(versions={0: -1}).pack()),
            ("header", "Checkpoint", "versions", -1, 0, SEQUENCE_MAX),
        ),
        (
            with_header(checkpoint_of(quantum_exponent=1).pack()),
            ("header", "Checkpoint", "quantum_exponent", 1, -40, 0),
        ),
        (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), ("checksum",)),
    ],
)
def test_an_error_says_what_is_wrong(data: bytes, named: tuple[object, ...]) -> None:
    assert refusal(data) == naming(*named)


def test_how_long_a_file_should_be_is_known_from_its_head_alone() -> None:
    head = parse_head(WHOLE[:-CHECKSUM_BYTES], len(WHOLE))

    assert (head.checkpoint, head.size) == (checkpoint_of(), len(WHOLE))
    with pytest.raises(CheckpointError, match=naming(4096, 7, len(WHOLE))):
        parse_head(WHOLE, 4096)


def test_the_largest_header_there_may_be_is_written_and_read() -> None:
    shape = (2**20,) * 5
    tensors = tuple(Tensor(f"{i:05d}" + "n" * 95, (0, *shape)) for i in range(14_800))
    layout = Layout((*tensors, Tensor("weights", (7,))))
    versions = dict.fromkeys(range(RANKS_MAX), SEQUENCE_MAX)
    checkpoint = checkpoint_of(run="\U0001f680" * 256, layout=layout, versions=versions)

    data = bytes_of(checkpoint)

    assert parse(data)[0] == checkpoint
    assert parse_head(data, len(data)).start <= HEAD_BYTES_MAX
