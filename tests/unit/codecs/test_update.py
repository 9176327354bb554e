"""Encoded updates: round trips, sizes, and refusal of everything else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gradwire_codecs import (
    CodecError,
    Feedback,
    LocalFeedback,
    MalformedUpdateError,
    Replica,
    Sections,
    SharedFeedback,
    Update,
    decode,
    encoded_bytes_max,
    encoded_hits,
)
from gradwire_codecs.bits import BLOCK
from gradwire_codecs.dense import dense_bytes, digits_per_word
from gradwire_codecs.header import DENSE, EVERY, HEADER_BYTES_MAX, LISTED, PLAIN, pack_number
from gradwire_codecs.update import BYTES_MIN, ELEMENTS_MAX, pack_update, split_update
from support.reference_decoder import reference_decode
from support.updates import changes, updates


def single(length: int, index: list[int], count: list[int], multiple: int = 1) -> Update:
    """Return an update of one section."""
    return Update(
        Sections.single(0, length, multiple), np.array(index, np.uint32), np.array(count, np.int32)
    )


# Round trips.


@given(update=updates())
def test_decoding_gives_back_what_was_encoded(update: Update) -> None:
    body = pack_update(update)
    decoded = decode(body, ELEMENTS_MAX)

    assert decoded.sections == update.sections
    assert decoded.index.tolist() == update.index.tolist()
    assert decoded.count.tolist() == update.count.tolist()
    assert encoded_hits(body) == len(update.index)


@given(update=updates(length_max=500))
def test_an_independent_decoder_reads_the_same(update: Update) -> None:
    assert reference_decode(pack_update(update)) == changes(update)


@given(update=updates())
def test_what_an_element_changes_by_is_its_count_of_its_own_threshold(update: Update) -> None:
    section = np.searchsorted(update.sections.bounds, update.index, "right") - 1
    expected = update.count.astype(np.int64) * update.sections.multiples[section]

    assert update.change.dtype == np.int32
    assert update.change.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", [LocalFeedback, SharedFeedback])
@given(update=updates(length_max=600), seed=st.integers(0, 2**32))
def test_bytes_are_applied_as_what_they_are_decoded_to(
    kind: type[Feedback], update: Update, seed: int
) -> None:
    update = Update(
        Sections(update.sections.bounds - update.start, update.sections.multiples),
        update.index - np.uint32(update.start),
        update.count,
    )
    body, elements = pack_update(update), update.stop + 3
    random = np.random.default_rng(seed)
    values = random.integers(-(2**31), 2**31, elements).astype(np.int32)
    ahead = random.normal(0, 1, elements).astype(np.float32)
    by_bytes, by_arrays = (kind(ahead.copy(), Replica(values.copy())) for _ in range(2))
    alone = Replica(values.copy())

    assert by_bytes.apply(body) == by_arrays.apply(update) == alone.apply(body) == len(update.index)

    expected = values.astype(np.int64)
    expected[update.index] += update.change
    assert by_bytes.replica.values.tolist() == expected.astype(np.int32).tolist()
    assert by_arrays.replica.values.tolist() == expected.astype(np.int32).tolist()
    assert alone.values.tolist() == expected.astype(np.int32).tolist()
    assert by_bytes.parameters.tobytes() == by_arrays.parameters.tobytes()


# Sizes.


def least_bits(values: NDArray[np.int64]) -> int:
    """Return the bits of a sequence in Rice code, each block with the parameter that is best."""
    bits, previous = 0, None
    for low in range(0, len(values), BLOCK):
        block = values[low : low + BLOCK]
        by_parameter = [int((block >> k).sum()) + len(block) * (k + 1) for k in range(32)]
        k = int(np.argmin(by_parameter))
        zeros = (
            4
            if previous is None
            else 2 * (k - previous) - 1
            if k > previous
            else 2 * (previous - k)
        )
        bits += by_parameter[k] + zeros + 1
        previous = k
    return bits


def gaps(positions: NDArray[np.int64], start: int = 0) -> NDArray[np.int64]:
    """Return how many numbers are passed over before each position."""
    return np.diff(positions, prepend=start - 1) - 1


def exact_sizes(update: Update) -> dict[int, int]:
    """Return what each format takes in bytes, from the description."""
    magnitude = np.abs(update.count.astype(np.int64))
    listed = np.flatnonzero(magnitude > 1)
    hits = len(update.index)
    largest = int(magnitude.max())
    bounds, multiples = update.sections.bounds, update.sections.multiples
    table = [len(multiples), *np.diff(bounds).tolist(), *multiples.tolist()]
    positions = -(-(hits + least_bits(gaps(update.index.astype(np.int64), update.start))) // 8)
    in_list = -(-(least_bits(gaps(listed)) + least_bits(magnitude[listed] - 2)) // 8)
    every = -(-least_bits(magnitude - 1) // 8)
    numbers = {PLAIN: [], LISTED: [len(listed), positions], EVERY: [positions], DENSE: [largest]}
    coded = {
        PLAIN: positions,
        LISTED: positions + in_list,
        EVERY: positions + every,
        DENSE: dense_bytes(update.length, largest),
    }
    header = [update.start, hits, *table]
    return {
        form: 1 + sum(len(pack_number(n)) for n in header + numbers[form]) + coded[form]
        for form in ([PLAIN, DENSE] if largest == 1 else [LISTED, EVERY, DENSE])
    }


@given(update=updates())
def test_the_smallest_format_is_chosen_and_the_bound_holds(update: Update) -> None:
    sizes = exact_sizes(update)

    encoded = pack_update(update)

    assert len(encoded) == min(sizes.values())
    assert encoded[0] == min(form for form, size in sizes.items() if size == len(encoded))
    largest = int(np.abs(update.count.astype(np.int64)).max())
    assert len(encoded) <= encoded_bytes_max(update.length, largest, len(update.sections))


@pytest.mark.parametrize("magnitude_max", [1, 2, 7, 127, 32767, 2**31 - 1])
def test_a_word_takes_as_many_digits_as_fit(magnitude_max: int) -> None:
    radix, digits = 2 * magnitude_max + 1, digits_per_word(magnitude_max)

    assert radix**digits <= 2**64 < radix ** (digits + 1)


@pytest.mark.parametrize("density", [0.3, 0.55, 0.6, 0.65, 0.99, 1.0])
def test_no_density_takes_more_than_two_bits_an_element(density: float) -> None:
    random = np.random.default_rng(1)
    n = 50_000
    index = np.flatnonzero(random.random(n) < density).astype(np.uint32)
    count = random.choice(np.array([-1, 1], np.int32), index.size)

    encoded = pack_update(Update(Sections.single(0, n, 1), index, count))

    assert 8 * len(encoded) <= 1.62 * n


@given(update=updates(), bytes_max=st.integers(BYTES_MIN, 2000))
def test_a_split_update_does_the_same_in_parts_that_fit(update: Update, bytes_max: int) -> None:
    parts = split_update(update, bytes_max)

    together: dict[int, int] = {}
    for part in parts:
        assert len(part) <= bytes_max
        decoded = changes(decode(part, ELEMENTS_MAX))
        assert not together.keys() & decoded.keys()
        together |= decoded
    assert together == changes(update)


def test_parts_that_no_element_fits_are_refused() -> None:
    with pytest.raises(CodecError, match=f"a single element may take {BYTES_MIN}"):
        split_update(single(3, [0], [1]), BYTES_MIN - 1)


@pytest.mark.parametrize("density", [0.0003, 0.001, 0.01, 0.03, 0.05])
def test_uniform_positions_come_within_one_and_a_half_percent_of_the_entropy(
    density: float,
) -> None:
    random = np.random.default_rng(1)
    n = 3_000_000
    index = np.flatnonzero(random.random(n) < density).astype(np.uint32)
    count = random.choice(np.array([-1, 1], np.int32), index.size)
    p = index.size / n
    entropy = -np.log2(p) - (1 - p) / p * np.log2(1 - p)

    encoded = pack_update(Update(Sections.single(0, n, 1000), index, count))

    # The header aside, which a larger model has once as well.
    assert 8 * (len(encoded) - HEADER_BYTES_MAX) / index.size <= 1.015 * (entropy + 1)


def test_densities_that_differ_take_less_than_the_entropy_of_their_mean() -> None:
    random = np.random.default_rng(1)
    n = 400_000
    density = np.where(np.arange(n) < n // 20, 0.15, 0.002)
    index = np.flatnonzero(random.random(n) < density).astype(np.uint32)
    p = index.size / n
    entropy = -np.log2(p) - (1 - p) / p * np.log2(1 - p)

    encoded = pack_update(Update(Sections.single(0, n, 1), index, np.ones(index.size, np.int32)))

    assert 8 * len(encoded) / index.size <= 0.75 * (entropy + 1)


def test_magnitudes_cost_what_says_where_they_are() -> None:
    random = np.random.default_rng(1)
    n, hits = 2_000_000, 20_000
    index = np.sort(random.choice(n, hits, replace=False)).astype(np.uint32)
    plain = pack_update(Update(Sections.single(0, n, 1), index, np.ones(hits, np.int32)))
    p = 0.01
    count = np.where(random.random(hits) < p, 2, 1).astype(np.int32)
    entropy = -p * np.log2(p) - (1 - p) * np.log2(1 - p)

    listed = pack_update(Update(Sections.single(0, n, 1), index, count))

    assert 8 * (len(listed) - len(plain)) / hits <= 1.25 * entropy


# What is no update.


@given(update=updates(length_max=300), seed=st.integers(0, 2**32))
def test_damaged_bytes_are_refused_or_mean_a_valid_update(update: Update, seed: int) -> None:
    """Whatever the bytes are, `decode` answers with an update in range or with its own error."""
    random = np.random.default_rng(seed)
    damaged = bytearray(pack_update(update))
    for _ in range(random.integers(1, 4)):
        damaged[random.integers(len(damaged))] ^= 1 << random.integers(8)
    del damaged[len(damaged) - random.integers(0, 3) :]

    try:
        decoded = decode(damaged, update.stop)
    except MalformedUpdateError:
        return

    assert decoded.count.all()
    assert (np.diff(decoded.index.astype(np.int64)) > 0).all()
    assert decoded.start <= decoded.index[0]
    assert decoded.index[-1] < decoded.stop <= update.stop
    assert reference_decode(bytes(damaged)) == changes(decoded)


@given(body=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_malformed_update(body: bytes) -> None:
    try:
        decode(body, 100)
    except MalformedUpdateError:
        return
    assert reference_decode(body)


@pytest.mark.parametrize("kind", [LocalFeedback, SharedFeedback])
def test_an_update_that_is_wrong_at_its_end_changes_nothing(kind: type[Feedback]) -> None:
    body = pack_update(single(4000, list(range(0, 4000, 7)), [1, -1, 3, 1] * 143))
    feedback = kind(np.zeros(4000, np.float32), Replica.zeros(4000))

    for damaged in (body[:-1], body + b"\x00", body[:-1] + bytes([body[-1] | 0x80])):
        with pytest.raises(MalformedUpdateError, match="are not the 572 hits"):
            feedback.apply(damaged)
        with pytest.raises(MalformedUpdateError, match="are not the 572 hits"):
            feedback.replica.apply(damaged)

    assert not feedback.replica.values.any()
    assert not feedback.parameters.any()


# By hand: parameter 0; plus, gap 0; minus, gap 1: bits 00000 0 1 1 01, so elements 0 and 2.
POSITIONS = bytes([0b11000000, 0b10])
# Parameters 0 and 0; the hit behind 1 other, 1 above 2: bits 00000 00000 01 01.
LIST = bytes([0, 0b00101000])
# Parameter 0; 0 and 2 above 1: bits 00000 1 001.
MAGNITUDES = bytes([0b00100000, 0b1])
# +1, 0, -3 and seven times 0, as digits in radix 7.
WORD = sum((3 + c) * 7**i for i, c in enumerate([1, 0, -3, *[0] * 7])).to_bytes(8, "little")

FIELDS: dict[int, dict[str, int]] = {
    PLAIN: {},
    LISTED: {"listed": 1, "positions": 2},
    EVERY: {"positions": 2},
    DENSE: {"magnitude_max": 3},
}
CODED: dict[int, bytes] = {
    PLAIN: POSITIONS,
    LISTED: POSITIONS + LIST,
    EVERY: POSITIONS + MAGNITUDES,
    DENSE: WORD,
}


def by_hand(form: int, **other: int) -> bytes:
    """Return an update of 10 elements in two sections, with other fields in its header."""
    fields = {"start": 0, "hits": 2, **FIELDS[form], "sections": 2}
    fields |= {"length": 2, "multiple": 5, "length_2": 8, "multiple_2": 100}
    numbers = b"".join(map(pack_number, (fields | other).values()))
    return bytes([form]) + numbers + CODED[form]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (PLAIN, {0: 5, 2: -100}),
        (LISTED, {0: 5, 2: -300}),
        (EVERY, {0: 5, 2: -300}),
        (DENSE, {0: 5, 2: -300}),
    ],
)
def test_the_description_is_what_is_read(form: int, expected: dict[int, int]) -> None:
    body = by_hand(form)

    assert changes(decode(body, 10)) == reference_decode(body) == expected


@pytest.mark.parametrize(
    ("form", "other", "says"),
    [
        (PLAIN, {"start": 1}, "elements 1 to 11 of a vector of 10"),
        (PLAIN, {"hits": 0}, "0 hits cannot be coded in 10 bytes"),
        (PLAIN, {"hits": 1}, r"its \d+ bytes are not the 1 hits"),
        (PLAIN, {"hits": 3}, r"its \d+ bytes are not the 3 hits"),
        (PLAIN, {"hits": 11}, "11 hits among elements 0 to 10"),
        (PLAIN, {"hits": 41}, "41 hits cannot be coded in 10 bytes"),
        (PLAIN, {"sections": 0}, "0 sections in 10 bytes"),
        (PLAIN, {"sections": 5}, "5 sections in 10 bytes"),
        (PLAIN, {"sections": 1}, r"its \d+ bytes are not"),
        (PLAIN, {"length": 0}, "a section without elements at 0"),
        (PLAIN, {"length": 2**32 - 1}, "elements 0 to 4294967295 of a vector of 10"),
        (PLAIN, {"multiple": 0}, "multiple=0; it is 1 to 16777216"),
        (PLAIN, {"multiple": 2**24 + 1}, "multiple=16777217; it is 1 to 16777216"),
        (LISTED, {"listed": 0}, "0 hits are listed of 2"),
        (LISTED, {"listed": 3}, "3 hits are listed of 2"),
        (LISTED, {"listed": 2}, r"its \d+ bytes are not"),
        (LISTED, {"positions": 1}, r"its \d+ bytes are not"),
        (LISTED, {"positions": 3}, r"its \d+ bytes are not"),
        (LISTED, {"positions": 20}, "20 of 14 bytes for positions"),
        (EVERY, {"positions": 3}, r"its \d+ bytes are not"),
        (DENSE, {"magnitude_max": 0}, "magnitude_max=0; it is 1 to 2147483647"),
        (DENSE, {"magnitude_max": 2**31}, "magnitude_max=2147483648; it is 1 to 2147483647"),
        (DENSE, {"magnitude_max": 2}, r"its \d+ bytes are not"),
        (DENSE, {"magnitude_max": 2**31 - 1}, "bytes are not"),
        (DENSE, {"hits": 1}, r"its \d+ bytes are not the 1 hits"),
        (DENSE, {"hits": 3}, r"its \d+ bytes are not the 3 hits"),
        (DENSE, {"length_2": 40}, "elements 0 to 42 of a vector of 10"),
    ],
)
def test_a_header_out_of_range_is_named(form: int, other: dict[str, int], says: str) -> None:
    body = by_hand(form, **other)

    with pytest.raises(MalformedUpdateError, match=says):
        decode(body, 10)


@pytest.mark.parametrize("form", [0, 5, 255])
def test_a_format_that_is_none_is_named(form: int) -> None:
    with pytest.raises(MalformedUpdateError, match=f"unknown format {form}"):
        decode(bytes([form]) + by_hand(PLAIN)[1:], 10)


@pytest.mark.parametrize("form", [PLAIN, LISTED, EVERY, DENSE])
def test_an_update_that_is_cut_off_anywhere_is_refused(form: int) -> None:
    body = by_hand(form)

    for size in range(len(body)):
        with pytest.raises(MalformedUpdateError):
            decode(body[:size], 10)


@pytest.mark.parametrize("number", [b"\x80\x00", b"\xff\xff\xff\xff\x10", b"\x80" * 6])
def test_a_number_has_one_form_and_a_limit(number: bytes) -> None:
    body = by_hand(PLAIN)

    with pytest.raises(MalformedUpdateError, match="a number of no use"):
        decode(body[:1] + number + body[2:], 10)


def test_a_change_beyond_32_bits_is_refused() -> None:
    body = pack_update(single(9, [3, 4], [1, -128], 2**24 - 1))
    assert changes(decode(body, 9)) == {3: 2**24 - 1, 4: -128 * (2**24 - 1)}
    beyond = body.replace(pack_number(2**24 - 1), pack_number(2**24))

    with pytest.raises(MalformedUpdateError, match="changes by more than 2147483647 quanta"):
        decode(beyond, 9)


def test_claims_beyond_the_bytes_allocate_nothing() -> None:
    """A header may claim four thousand million hits; the bytes behind it decide."""
    claims = {"hits": 2**31 - 1, "length": 2**31 - 10}

    for form in FIELDS:
        with pytest.raises(MalformedUpdateError, match="2147483647 hits cannot be coded in"):
            decode(by_hand(form, **claims), ELEMENTS_MAX)
