"""Checkpoints: what is written is read, here and by safetensors, and nothing else is."""

import hashlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Replica
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.limits import BUFFER_LAYOUT_BYTES_MAX
from gradwire_protocol.messages.admission import (
    QUANTUM_EXPONENT_MAX,
    QUANTUM_EXPONENT_MIN,
    LogName,
    Place,
)
from gradwire_protocol.messages.buffers.layout import (
    BUFFER_TENSORS_MAX,
    INTEGER_TYPES,
    WIDTHS,
    BufferLayout,
    BufferTensor,
)
from gradwire_protocol.messages.checkpoint import values as module
from gradwire_protocol.messages.checkpoint.format import (
    ALIGNMENT,
    CHECKED_AT,
    CHECKSUM_AT,
    HEAD_BYTES_MAX,
    HEADER_BYTES_MAX,
    LENGTH,
    METADATA_CHARACTERS_MAX,
    SERIES_BYTES_MAX,
    SIGNATURE,
    Checkpoint,
    CheckpointError,
    parse,
    parse_head,
    pieces_of,
)
from gradwire_protocol.messages.fields import SEQUENCE_MAX
from gradwire_protocol.messages.kinds import RANK_END, RANKS_MAX
from gradwire_protocol.messages.layout import ELEMENTS_MAX, METADATA, TENSORS_MAX, Layout, Tensor
from gradwire_protocol.messages.modes.kept_state import STATE
from gradwire_protocol.messages.work import (
    EPOCHS_MAX,
    ITEMS_MAX,
    LEASE_SECONDS_MAX,
    NUMBER_MAX,
    OPEN_MAX,
    WORK_NAME_CHARACTERS_MAX,
    WORKS_MAX,
    Ledger,
    Plan,
    WorkState,
)
from support.checkpointing import VALUES, bytes_of, checkpoint_of
from support.memory import peak_of
from support.wording import naming

WHOLE = bytes_of()


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shapes = draw(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=4))
    name = st.text(max_size=20).filter(lambda name: name.isprintable() and name != METADATA)
    names = draw(st.lists(name, unique=True, min_size=len(shapes), max_size=len(shapes)))
    tensors = [Tensor(name, tuple(shape)) for name, shape in zip(names, shapes, strict=True)]
    return Layout((*tensors, Tensor("the last, of more characters", (draw(st.integers(1, 9)),))))


@st.composite
def works(draw: st.DrawFn) -> WorkState:
    open_items = sorted(draw(st.sets(st.integers(0, NUMBER_MAX - 1), max_size=5)))
    name = draw(st.text(min_size=1, max_size=WORK_NAME_CHARACTERS_MAX).filter(str.isprintable))
    seed = draw(st.none() | st.integers(0, 2**32 - 1))
    plan = Plan(name, ITEMS_MAX, EPOCHS_MAX, seed, draw(st.integers(1, LEASE_SECONDS_MAX)))
    return WorkState(plan, Ledger(NUMBER_MAX, tuple(open_items)))


@st.composite
def buffer_layouts(draw: st.DrawFn) -> BufferLayout:
    def tensors(*types: str) -> tuple[BufferTensor, ...]:
        shapes = draw(st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=3))
        return tuple(
            BufferTensor(f"{types[0]} buffer {i}", tuple(shape), draw(st.sampled_from(types)))
            for i, shape in enumerate(shapes)
        )

    width = draw(st.sampled_from([4, 8]))
    return BufferLayout(tensors("float"), tensors(*INTEGER_TYPES), width, tensors(*WIDTHS))


def quanta_of(checkpoint: Checkpoint, seed: int) -> Int32Array:
    """Return a replica, with elements of all sizes."""
    random = np.random.default_rng(seed)
    elements = checkpoint.layout.elements
    values = random.integers(-(2**31), 2**31, elements) >> random.integers(0, 32, elements)
    return values.astype("<i4")


def places() -> st.SearchStrategy[Place]:
    """Places in logs of masters that continue another one, or do not."""
    ids, positions = st.integers(0, 2**64 - 1), st.integers(0, 2**63)
    return st.builds(Place, st.builds(LogName, ids, ids, positions), positions)


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
        place=draw(places()),
        works=tuple(draw(st.lists(works(), max_size=3))),
        buffers=draw(buffer_layouts()),
        series=draw(st.binary(max_size=20)),
    )


def refusal(data: bytes) -> str:
    with pytest.raises(CheckpointError) as refused:
        parse(data)
    return str(refused.value)


def with_header(header: bytes, *, length: int | None = None) -> bytes:
    """Return a file with this header, the usual replica, and the checksum of both."""
    header += b" " * (-(LENGTH.size + len(header)) % ALIGNMENT)
    head = LENGTH.pack(len(header) if length is None else length) + header
    data = head + VALUES.astype("<i4").tobytes()
    checksum = hashlib.sha256(data[CHECKED_AT:]).hexdigest().encode()
    return data[:CHECKSUM_AT] + checksum + data[CHECKED_AT:]


def edited(old: str, new: str | bytes) -> bytes:
    """Return a file with something else in its header, and the right checksum."""
    header = WHOLE[LENGTH.size : parse_head(WHOLE, len(WHOLE))[1]].rstrip(b" ")
    assert header.count(old.encode()) == 1
    return with_header(
        header.replace(old.encode(), new if isinstance(new, bytes) else new.encode())
    )


@given(checkpoint=checkpoints(), seed=st.integers(0, 2**32 - 1))
def test_what_is_written_is_read(checkpoint: Checkpoint, seed: int) -> None:
    values = quanta_of(checkpoint, seed).astype("<i4").tobytes()
    buffers = np.random.default_rng(seed).bytes(checkpoint.buffers.bytes_in_file)

    data = b"".join(pieces_of(checkpoint, values, buffers))
    read, replica, kept = parse(bytearray(data))

    assert read == checkpoint
    assert bytes(replica) == values
    assert not replica.readonly, "the replica can be used where it was read"
    assert bytes(kept) == buffers
    assert parse(data).values == replica, "also where the file's bytes cannot be written to"


def test_a_name_may_look_like_a_header() -> None:
    name = ',"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\\"'
    checkpoint = checkpoint_of(run=name, layout=Layout((Tensor(name, (7,)), Tensor("", (0,)))))

    assert parse(bytes_of(checkpoint))[0] == checkpoint


@given(checkpoint=checkpoints(), seed=st.integers(0, 2**32 - 1))
def test_safetensors_reads_what_is_written(checkpoint: Checkpoint, seed: int) -> None:
    """The parameters that the replica stands for; in float64 where float32 lacks the integers."""
    values = quanta_of(checkpoint, seed)
    content = np.random.default_rng(seed).bytes(checkpoint.buffers.bytes_in_file)

    found = safetensors.numpy.load(b"".join(pieces_of(checkpoint, values.tobytes(), content)))

    tensors = checkpoint.layout.tensors
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    shapes |= {tensor.name: tensor.shape for tensor in checkpoint.buffers.tensors}
    assert {name: array.shape for name, array in found.items()} == shapes
    flat = np.concatenate([found[tensor.name].reshape(-1) for tensor in tensors])
    quantum = 2.0**checkpoint.quantum_exponent
    assert (flat.astype(np.float64) / quantum).tolist() == values.tolist()
    parameters = np.empty(len(values), np.float32)
    Replica(values, checkpoint.quantum_exponent).write_parameters(parameters)
    assert flat.astype(np.float32).tolist() == parameters.tolist()
    at = 0
    for tensor in tensors:
        part = values[at : at + tensor.elements].astype(np.int64)
        at += tensor.elements
        fits = np.array_equal(part.astype(np.float32).astype(np.int64), part)
        assert found[tensor.name].dtype == (np.float32 if fits else np.float64)
    for name, array in checkpoint.buffers.arrays(content).items():
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes())


def test_the_replica_stands_where_arrays_like_to_begin() -> None:
    for characters in range(1, ALIGNMENT + 1):
        data = bytes_of(checkpoint_of(run="r" * characters))
        assert parse_head(data, len(data))[1] % ALIGNMENT == 0


def test_a_replica_goes_out_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ELEMENTS", 2)

    head, *pieces = pieces_of(checkpoint_of(), VALUES.astype("<i4").tobytes())

    assert [len(piece) for piece in pieces] == [8, 8, 8, 4]
    assert b"".join([head, *pieces]) == WHOLE


def test_one_element_of_many_bits_makes_its_tensor_float64_and_no_other() -> None:
    """2^24 + 1 quanta are the first number that float32 does not have."""
    for value, kind in ((2**24, "F32"), (2**24 + 1, "F64"), (2**31 - 1, "F64"), (-(2**31), "F32")):
        values = VALUES.copy()
        values[6] = value
        data = bytes_of(checkpoint_of(values), values)

        assert b'"weights":{"dtype":"F32"' in data
        assert b'"bias":{"dtype":"%s"' % kind.encode() in data
        assert np.frombuffer(parse(data).values, "<i4").tolist() == values.tolist()


@pytest.mark.parametrize("value", [2.0**-25, np.nan, np.inf, -0.0, 2.0**7, 1e30])
def test_a_value_that_is_no_number_of_quanta_is_refused(value: float) -> None:
    """Such a file has its checksum: somebody has written it."""
    data = bytearray(WHOLE)
    data[-4:] = np.float32(value).tobytes()
    checksum = hashlib.sha256(data[CHECKED_AT:]).hexdigest().encode()
    data[CHECKSUM_AT:CHECKED_AT] = checksum

    assert refusal(bytes(data)) == naming("bias")


def test_what_an_optimizer_keeps_stays_integers() -> None:
    layout = Layout((Tensor("weights", (3,)), Tensor(STATE + "last", (4,))))

    data = bytes_of(checkpoint_of(layout=layout))

    assert safetensors.numpy.load(data)[STATE + "last"].tolist() == VALUES[3:].tolist()
    assert np.frombuffer(parse(data).values, "<i4").tolist() == VALUES.tolist()


def test_two_tensors_of_one_name_are_refused() -> None:
    one = BufferLayout((BufferTensor("average", (1,), "float"),), (), 4)
    checkpoint = replace(checkpoint_of(), buffers=one)
    data = b"".join(pieces_of(checkpoint, VALUES.astype("<i4").tobytes(), bytes(4)))

    assert refusal(data.replace(b'"average"', b'"weights"')) == naming("'weights'", "taken")


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
    for each in (data, with_header(data), with_header(SIGNATURE + data)):
        assert refusal(each)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", ("no checkpoint", "b''", repr(SIGNATURE))),
        (WHOLE[:11], ("no checkpoint", repr(WHOLE[:11]), repr(SIGNATURE))),
        (b"PK\x03\x04 a zip", ("no checkpoint", r"b'PK\x03\x04 a zip'")),
        (edited('checkpoint":"2"', 'checkpoint":"1"'), ("no checkpoint", '"1"', '"2"')),
        (safetensors.numpy.save({"bias": VALUES}), ("no checkpoint", repr(SIGNATURE))),
        (
            with_header(SIGNATURE, length=HEADER_BYTES_MAX + 1),
            ("header", HEADER_BYTES_MAX + 1, HEADER_BYTES_MAX),
        ),
        (with_header(SIGNATURE, length=2**64 - 1), ("header", 2**64 - 1, HEADER_BYTES_MAX)),
        (WHOLE[:200], (200, "header", parse_head(WHOLE, len(WHOLE))[1])),
        (with_header(SIGNATURE + b'"'), ("header",)),
        (with_header(SIGNATURE, length=0), ("header",)),
        (with_header(SIGNATURE + b"0" * 64 + b'"}}'), ("header", "run", "place", "digest")),
        (edited('","run"', '0","run"'), ("header", CHECKED_AT - LENGTH.size)),
        (edited('"finished":"false",', ""), ("header", "missing", "finished")),
        (edited('"finished"', '"more":"1","finished"'), ("header", "unknown", "more")),
        (edited("[[0,3],[2,1]]", "[[0,-1]]"), ("header", "versions", -1, 0, SEQUENCE_MAX)),
        (edited("[[0,3],[2,1]]", "[[0,3],[0,3]]"), ("header", "versions", "twice")),
        (edited("[[0,3],[2,1]]", "[" * 40_000), ("header",)),
        (edited("[[0,3],[2,1]]", "[[0,3],"), ("header", "versions")),
        (edited('"[[0,3],[2,1]]"', "[" * 40_000), ("header",)),
        (edited('"[[0,3],[2,1]]"', "[[0,3],[2,1]]"), ("header", '"[[0,3],', "[[0,3],")),
        (edited('"-24"', '"1"'), ("header", "quantum_exponent", 1, -40, 0)),
        (edited('"-24"', '"NaN"'), ("header", "quantum_exponent", "nan")),
        (edited('"-24"', '"-24 "'), ("header", '"-24 "', '"-24"')),
        (edited('"-24"', '"' + "9" * 5_000 + '"'), ("header", "quantum_exponent")),
        (edited('"digest":"5', '"digest":"x'), ("header", "digest")),
        (edited("alpha", b"\xff"), ("header", "utf-8", "0xff")),
        (edited("alpha", "\\ud800"), ("header", "run")),
        (edited("alpha", "a" * 257), ("header", "run", 256)),
        (edited('"bias"', '"weights"'), ("header", "weights", "taken")),
        (edited('"bias"', '"__metadata__"'), ("header", "__metadata__", "taken")),
        (edited('"run"', '"run":"beta","run"'), ("header", '"beta"', '"alpha"')),
        (edited('"bias":{"dtype":"F32', '"bias":{"dtype":"I32'), ("header", '"I32"', '"F32"')),
        (edited("[4,0,0,0]", "[4,0,0]"), ("header", "buffers")),
        (edited("[4,0,0,0]", "[4,0,3,0]"), ("header", "buffers", 3, 2)),
        (edited("[4,0,0,0]", "[2,0,0,0]"), ("header", "float_bytes", 2, 4, 8)),
        (edited("[4,0,0,0]", "[4,0,1,0]"), ("header", "integers", "'F32'")),
        (edited("[4,0,0,0]", "[4,1e9,0,0]"), ("header", "buffers")),
        (edited("[24,28]", "[20,24]"), ("header", "[20,24]", "[24,28]")),
        (edited("[24,28]", "[28,32]"), ("header", "[28,32]", "[24,28]")),
        (edited("[24,28]", "[24.0,28]"), ("header", "[24.0,28]", "[24,28]")),
        (edited("[24,28]}", '[24,28],"more":1}'), ("header", '"more"')),
        (edited('"shape":[1]', '"shape":[NaN]'), ("header", "shape", "nan")),
        (edited('"shape":[1]', '"shape":[-1]'), ("header", "shape", -1, ELEMENTS_MAX)),
        (edited('"shape":[1]', '"shape":[1,[1]]'), ("header", "[1,[1]]")),
        (edited("[24,28]}}", '[24,28]}} "'), ("header",)),
        (edited("[2,3]", "[3,2147483647]"), ("header", "tensors", 3 * (2**31 - 1) + 1)),
        (edited("[0,24]", "[0, 24]"), ("header", "[0, 24]", "[0,24]")),
        (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), ("checksum", WHOLE[CHECKSUM_AT:CHECKED_AT].decode())),
    ],
)
def test_an_error_says_what_is_wrong(data: bytes, named: tuple[object, ...]) -> None:
    assert refusal(data) == naming(*named)


def check_refusal(data: bytes) -> None:
    assert refusal(data) == naming("header")


@pytest.mark.parametrize(
    "flood",
    ["[],", "{},", '"":{"dtype":"F32","shape":[],"data_offsets":[0,0]},', '"ab",', "[", '\\"'],
)
def test_a_header_takes_little_more_memory_than_it_has_bytes(flood: str) -> None:
    count = HEADER_BYTES_MAX // len(flood) - 1_000
    for data in (edited('"bias"', flood * count + '"bias"'), edited("alpha", flood * count)):
        assert peak_of(partial(check_refusal, data)) < 5 * len(data)


def test_how_long_a_file_should_be_is_known_from_its_head_alone() -> None:
    checkpoint, start = parse_head(WHOLE[: -VALUES.nbytes], len(WHOLE))

    assert (checkpoint, start) == (checkpoint_of(), len(WHOLE) - VALUES.nbytes)
    with pytest.raises(CheckpointError, match=naming(4096, 7, len(WHOLE))):
        parse_head(WHOLE, 4096)


@pytest.mark.deep("the largest header of a checkpoint")
def test_the_largest_header_there_may_be_is_written_and_read() -> None:
    # Names that take twice as long in JSON, and shapes that do, of as many tensors as there may be.
    shape = (0, *(ELEMENTS_MAX,) * 8)
    tensors = [Tensor(f"{i:05d}" + '"' * 60, shape) for i in range(TENSORS_MAX - 1)]
    layout = Layout((*tensors, Tensor("weights", (7,))))
    versions = dict.fromkeys(range(RANK_END - RANKS_MAX, RANK_END), SEQUENCE_MAX)
    plan = Plan('"' * WORK_NAME_CHARACTERS_MAX, ITEMS_MAX, EPOCHS_MAX, 2**32 - 1, LEASE_SECONDS_MAX)
    ledger = Ledger(NUMBER_MAX, tuple(range(NUMBER_MAX - OPEN_MAX, NUMBER_MAX)))
    counted = [f'{i:04d}"' for i in range(BUFFER_TENSORS_MAX)]
    buffers = BufferLayout(
        tuple(BufferTensor("f" + name, (0,), "float") for name in counted[:7_000]),
        (),
        4,
        tuple(BufferTensor("o" + name, (0, ELEMENTS_MAX), "U8") for name in counted),
    )
    assert 0.9 * BUFFER_LAYOUT_BYTES_MAX < len(buffers.packed) <= BUFFER_LAYOUT_BYTES_MAX
    checkpoint = replace(
        checkpoint_of(run='"' * 256, layout=layout, versions=versions),
        works=(WorkState(plan, ledger),) * WORKS_MAX,
        buffers=buffers,
        series=bytes(SERIES_BYTES_MAX),
    )

    data = bytes_of(checkpoint)

    assert parse(data)[0] == checkpoint
    assert 0.6 * HEAD_BYTES_MAX < parse_head(data, len(data))[1] <= HEAD_BYTES_MAX
    metadata = data[LENGTH.size :].index(b'"00000')
    metadata -= 4 * SERIES_BYTES_MAX // 3
    assert 0.8 * METADATA_CHARACTERS_MAX < metadata < METADATA_CHARACTERS_MAX


@pytest.mark.parametrize("name", ['","series":"AAAA"', ',"series":"AAAA"', "x\\", "series"])
def test_what_looks_like_series_in_a_name_is_a_name(name: str) -> None:
    layout = Layout((Tensor(name, (7,)),))
    for series in (b"", b"curves"):
        checkpoint = replace(checkpoint_of(run=name, layout=layout), series=series)
        assert parse(bytes_of(checkpoint))[0] == checkpoint
