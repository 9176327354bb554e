"""Encoded updates: round trips, sizes, and refusal of everything else."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import MalformedUpdateError, Sections, Update, decode, encoded_bytes_max
from gradwire_codecs.dense import dense_bytes, digits_per_word
from gradwire_codecs.sparse import sparse_parameters
from gradwire_codecs.update import HEADER_BYTES, pack_update, split_update
from support.reference_decoder import reference_decode


@st.composite
def updates(draw: st.DrawFn, length_max: int = 3000) -> Update:
    """Draw updates of every density, with small, large and mixed magnitudes."""
    length = draw(st.integers(1, length_max))
    start = draw(st.sampled_from([0, 1, 7, 1_000_000, 2**31 - 1 - length]))
    multiple = draw(st.sampled_from([1, 2, 1000, 2**24]))
    magnitude_max = min(draw(st.sampled_from([1, 2, 127, 2**31 - 1])), (2**31 - 1) // multiple)
    density = draw(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    hits = np.flatnonzero(random.random(length) < density)
    if not hits.size:
        hits = np.array([draw(st.integers(0, length - 1))])
    magnitudes = random.integers(1, magnitude_max, hits.size, endpoint=True)
    few = draw(st.booleans())
    if few:
        magnitudes = np.where(random.random(hits.size) < 0.9, 1, magnitudes)
    signs = random.choice([-1, 1], hits.size)
    return Update(
        Sections.single(start, start + length, multiple),
        (hits + start).astype(np.uint32),
        (signs * magnitudes).astype(np.int32),
    )


def changes(update: Update) -> dict[int, int]:
    """Return what an update does, in quanta per element."""
    return {int(i): int(c) for i, c in zip(update.index, update.change, strict=True)}


@given(update=updates())
def test_decoding_gives_back_what_was_encoded(update: Update) -> None:
    decoded = decode(pack_update(update), 2**31 - 1)

    assert (decoded.start, decoded.length) == (update.start, update.length)
    assert changes(decoded) == changes(update)


@given(update=updates(length_max=500))
def test_an_independent_decoder_reads_the_same(update: Update) -> None:
    assert reference_decode(pack_update(update)) == changes(update)


@given(update=updates())
def test_the_smaller_coder_is_chosen_and_the_bound_holds(update: Update) -> None:
    magnitude_max = int(np.abs(update.count).max())
    *_, sparse_size = sparse_parameters(update.index, update.count, update.start)
    dense_size = dense_bytes(update.length, magnitude_max)

    encoded = pack_update(update)

    assert len(encoded) == HEADER_BYTES + min(sparse_size, dense_size)
    assert len(encoded) <= encoded_bytes_max(update.length, magnitude_max)


@given(update=updates(length_max=400))
def test_no_other_rice_parameters_are_shorter(update: Update) -> None:
    gaps = update.index - np.append(update.start, update.index[:-1].astype(np.int64) + 1)
    rest = np.abs(update.count.astype(np.int64)) - 1
    shortest = min(int((gaps >> k).sum()) + gaps.size * (k + 2) for k in range(32))
    if rest.any():
        shortest += min(int((rest >> k).sum()) + rest.size * (k + 1) for k in range(32))

    *_, size = sparse_parameters(update.index, update.count, update.start)

    assert size == (shortest + 7) // 8


@given(update=updates(), bytes_max=st.integers(32, 2000))
def test_a_split_update_does_the_same_in_parts_that_fit(update: Update, bytes_max: int) -> None:
    parts = split_update(update, bytes_max)

    together: dict[int, int] = {}
    for part in parts:
        assert len(part) <= bytes_max
        decoded = changes(decode(part, 2**31 - 1))
        assert not together.keys() & decoded.keys()
        together |= decoded
    assert together == changes(update)


def test_uniform_positions_come_within_two_percent_of_the_entropy() -> None:
    random = np.random.default_rng(1)
    for density in (0.0003, 0.001, 0.01, 0.05):
        n = 1_000_000
        index = np.flatnonzero(random.random(n) < density).astype(np.uint32)
        count = random.choice(np.array([-1, 1], np.int32), index.size)
        p = index.size / n
        entropy = -np.log2(p) - (1 - p) / p * np.log2(1 - p)

        encoded = pack_update(Update(Sections.single(0, n, 1), index, count))

        assert 8 * (len(encoded) - HEADER_BYTES) / index.size <= 1.02 * (entropy + 1)


@given(update=updates(length_max=300), seed=st.integers(0, 2**32))
def test_damaged_bytes_are_refused_or_mean_a_valid_update(update: Update, seed: int) -> None:
    """Whatever the bytes are, `decode` answers with an update in range or with its own error."""
    random = np.random.default_rng(seed)
    damaged = bytearray(pack_update(update))
    for _ in range(random.integers(1, 4)):
        damaged[random.integers(len(damaged))] ^= 1 << random.integers(8)
    del damaged[len(damaged) - random.integers(0, 3) :]
    elements = update.start + update.length

    try:
        decoded = decode(damaged, elements)
    except MalformedUpdateError:
        return

    assert decoded.count.all()
    assert (np.diff(decoded.index.astype(np.int64)) > 0).all()
    assert decoded.start <= decoded.index[0]
    assert decoded.index[-1] < decoded.start + decoded.length <= elements
    assert np.abs(decoded.change.astype(np.int64)).max() < 2**31


@given(body=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_malformed_update(body: bytes) -> None:
    with pytest.raises(MalformedUpdateError):
        decode(body, 100)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("coder", 3, "unknown format 3"),
        ("gap_k", 32, "Rice parameters 32"),
        ("magnitude_k", 40, "Rice parameters"),
        ("reserved", 1, "reserved"),
        ("multiple", 0, "multiple=0"),
        ("multiple", 2**24 + 1, "multiple=16777217"),
        ("start", 5, "elements 5 to 15 of a vector of 10"),
        ("length", 0, "elements 0 to 0"),
        ("hits", 0, "0 hits"),
        ("hits", 11, "11 hits among 10"),
        ("hits", 9, "cannot be coded"),
        ("hits", 1, "something behind"),
        ("magnitude_max", 0, "magnitude_max=0"),
        ("magnitude_max", 2, "is not what the counts hold"),
        ("magnitude_max", 2**31, "exceeds"),
    ],
)
def test_a_header_out_of_range_is_named(field: str, value: int, says: str) -> None:
    header = {
        "coder": 1,
        "gap_k": 0,
        "magnitude_k": 255,
        "reserved": 0,
        "multiple": 1,
        "start": 0,
        "length": 10,
        "hits": 2,
        "magnitude_max": 1,
    }
    # gap 0, plus; gap 1, minus: bits 1 0 | 0 1 1
    hits = bytes([0b11001])
    assert changes(decode(struct.pack("<BBBBIIIII", *header.values()) + hits, 10)) == {0: 1, 2: -1}

    with pytest.raises(MalformedUpdateError, match=says):
        decode(struct.pack("<BBBBIIIII", *(header | {field: value}).values()) + hits, 10)


def test_a_dense_update_has_exactly_its_length_and_digits() -> None:
    index = np.arange(79, dtype=np.uint32)
    encoded = bytearray(
        pack_update(Update(Sections.single(0, 79, 1), index, np.ones(79, np.int32)))
    )
    assert encoded[0] == 2
    assert len(encoded) == HEADER_BYTES + 16

    with pytest.raises(MalformedUpdateError, match="15 bytes for 79 elements"):
        decode(encoded[:-1], 79)
    with pytest.raises(MalformedUpdateError, match="too large for its digits"):
        decode(encoded[:24] + b"\xff" * 16, 79)
    with pytest.raises(MalformedUpdateError, match="78 hits, not 79"):
        decode(encoded[:24] + bytes([encoded[24] - 1]) + encoded[25:], 79)
    with pytest.raises(MalformedUpdateError, match="Rice parameters"):
        decode(encoded[:1] + b"\x01" + encoded[2:], 79)


def test_claims_beyond_the_bytes_allocate_nothing() -> None:
    """A header may claim two thousand million hits; the bytes behind it decide."""
    header = struct.pack("<BBBBIIIII", 1, 0, 255, 0, 1, 0, 2**31 - 1, 2**31 - 1, 1)

    with pytest.raises(MalformedUpdateError, match="cannot be coded in 4 bytes"):
        decode(header + b"\xff" * 4, 2**31 - 1)


@pytest.mark.parametrize("magnitude_max", [1, 2, 7, 127, 32767, 2**31 - 1])
def test_a_word_takes_as_many_digits_as_fit(magnitude_max: int) -> None:
    radix, digits = 2 * magnitude_max + 1, digits_per_word(magnitude_max)

    assert radix**digits <= 2**64 < radix ** (digits + 1)
