"""Encoded updates: round trips and sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gradwire_codecs import (
    NOTHING,
    CodecError,
    LocalFeedback,
    Replica,
    Update,
    decode,
    encoded_bytes_max,
    encoded_hits,
)
from gradwire_codecs.arrays import Int8Array
from gradwire_codecs.feedback.host_feedback import HostFeedback
from gradwire_codecs.format.bits import BLOCK
from gradwire_codecs.format.dense import dense_bytes, digits_per_word
from gradwire_codecs.format.header import (
    BYTES,
    DENSE,
    EVERY,
    HEADER_BYTES_MAX,
    LISTED,
    MULTIPLE_MAX,
    PLAIN,
    pack_header,
    pack_number,
)
from gradwire_codecs.format.update import (
    BYTES_MIN,
    ELEMENTS_MAX,
    DenseUpdate,
    pack_update,
    split_update,
)
from gradwire_codecs.replica.digests import BlockDigests
from support.feedbacks import KINDS
from support.reference_decoder import reference_decode
from support.updates import changes, range_of, single, updates

# Round trips.


@given(update=updates())
def test_decoding_gives_back_what_was_encoded(update: Update) -> None:
    body = pack_update(update)
    decoded = decode(body, ELEMENTS_MAX)

    assert range_of(decoded) == range_of(update)
    assert decoded.index.tolist() == update.index.tolist()
    assert decoded.count.tolist() == update.count.tolist()
    assert encoded_hits(body) == len(update.index)


@given(update=updates(length_max=500))
def test_an_independent_decoder_reads_the_same(update: Update) -> None:
    assert reference_decode(pack_update(update)) == changes(update)


@given(update=updates())
def test_what_an_element_changes_by_is_its_count_of_the_threshold(update: Update) -> None:
    expected = update.count.astype(np.int64) * update.multiple

    assert update.change.dtype == np.int32
    assert update.change.tolist() == expected.tolist()


@KINDS
@given(update=updates(length_max=600), seed=st.integers(0, 2**32))
def test_bytes_are_applied_as_what_they_are_decoded_to(
    kind: type[HostFeedback], update: Update, seed: int
) -> None:
    index = update.index - np.uint32(update.start)
    update = Update(0, update.length, update.multiple, index, update.count)
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


COUNTS = arrays(np.int8, st.integers(1, 300), elements=st.integers(-127, 127)).filter(np.any)


@KINDS
@given(
    counts=COUNTS,
    start=st.sampled_from([0, 5]),
    multiple=st.sampled_from([1, 1000, 2**24]),
    seed=st.integers(0, 2**32),
)
def test_a_count_for_each_element_does_what_a_list_of_hits_does(
    kind: type[HostFeedback], counts: Int8Array, start: int, multiple: int, seed: int
) -> None:
    """Encoded, decoded, in parts, and applied to replica, parameters and digests."""
    stop = start + len(counts)
    update, elements = DenseUpdate(start, stop, multiple, counts), stop + 2
    index = np.flatnonzero(counts)
    listed = Update(
        start, stop, multiple, (index + start).astype(np.uint32), counts[index].astype(np.int32)
    )
    random = np.random.default_rng(seed)
    values = random.integers(-(2**31), 2**31, elements).astype(np.int32)
    ahead = random.normal(0, 1, elements).astype(np.float32)
    middle = start + (len(counts) + 1) // 2

    assert changes(update) == changes(listed)
    assert update.hits == listed.hits == len(listed.index)
    assert (update.change_of_range() == listed.change_of_range()).all()
    assert changes(update.within(start, middle)) == changes(listed.within(start, middle))
    assert pack_update(update) == pack_update(listed)
    assert Replica(values).first_outside(update) == Replica(values).first_outside(listed)
    results = []
    for given_ in (update, listed):
        feedback, replica = kind(ahead.copy(), Replica(values.copy())), Replica(values.copy())
        digests = BlockDigests.of(replica.values, 7)
        digests.add(given_)
        assert feedback.apply(given_) == replica.apply(given_) == update.hits
        results.append((
            feedback.replica.values.tobytes(), feedback.parameters.tobytes(),
            replica.values.tobytes(), digests.values.tobytes(),
        ))  # fmt: skip
    assert results[0] == results[1]


@given(
    counts=COUNTS, start=st.sampled_from([0, 5, 1_000_000]), multiple=st.sampled_from([1, 2**24])
)
def test_a_byte_for_each_element_is_read_back(counts: Int8Array, start: int, multiple: int) -> None:
    """Whatever an encoder would choose."""
    hits = int(np.count_nonzero(counts))
    body = pack_header(BYTES, start, len(counts), multiple, [hits]) + counts.tobytes()

    update = decode(body, start + len(counts))

    assert isinstance(update, DenseUpdate)
    assert update.counts.tolist() == counts.tolist()
    assert range_of(update) == (start, start + len(counts), multiple)
    assert reference_decode(body) == changes(update)
    assert encoded_hits(body) == hits
    values = np.zeros(start + len(counts), np.int32)
    assert Replica(values).apply(body) == hits
    assert (values[start:] == update.change_of_range()).all()


@pytest.mark.parametrize("elements", [1, 300])
def test_no_byte_at_all_is_an_update_that_changes_nothing(elements: int) -> None:
    update = decode(NOTHING, elements)
    feedback = LocalFeedback(np.zeros(elements, np.float32), Replica.zeros(elements))

    assert (update.start, update.stop, len(update.index), len(update.change)) == (0, elements, 0, 0)
    assert encoded_hits(NOTHING) == 0
    for change in (NOTHING, update):
        assert feedback.apply(change) == feedback.replica.apply(change) == 0
    assert feedback.replica.first_outside(update) is None
    assert not feedback.replica.values.any()


@pytest.mark.parametrize(
    ("start", "stop", "multiple", "says"),
    [
        (-1, 3, 1, "elements -1 to 3"),
        (3, 3, 1, "elements 3 to 3"),
        (0, 3, 0, "multiple=0"),
        (0, 3, MULTIPLE_MAX + 1, "multiple=16777217"),
    ],
)
def test_what_is_no_update_is_refused(start: int, stop: int, multiple: int, says: str) -> None:
    with pytest.raises(CodecError, match=says):
        Update(start, stop, multiple, np.zeros(1, np.uint32), np.ones(1, np.int32))


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
    """Return what each format takes in bytes that an encoder compares, from the description."""
    magnitude = np.abs(update.count.astype(np.int64))
    listed = np.flatnonzero(magnitude > 1)
    hits = len(update.index)
    largest = int(magnitude.max())
    positions = -(-(hits + least_bits(gaps(update.index.astype(np.int64), update.start))) // 8)
    in_list = -(-(least_bits(gaps(listed)) + least_bits(magnitude[listed] - 2)) // 8)
    every = -(-least_bits(magnitude - 1) // 8)
    total = int(magnitude.sum())
    if 69 <= largest <= 127 and total >= 16 * update.length and 8 * hits >= 7 * update.length:
        header = [update.start, update.length, update.multiple, hits]
        return {BYTES: 1 + sum(len(pack_number(n)) for n in header) + update.length}
    numbers = {PLAIN: [], LISTED: [len(listed), positions], EVERY: [positions], DENSE: [largest]}
    coded = {
        PLAIN: positions,
        LISTED: positions + in_list,
        EVERY: positions + every,
        DENSE: dense_bytes(update.length, largest),
    }
    header = [update.start, update.length, update.multiple, hits]
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
    assert len(encoded) <= encoded_bytes_max(update.length, largest)


@pytest.mark.parametrize("magnitude_max", [1, 2, 7, 127, 32767, 2**31 - 1])
def test_a_word_takes_as_many_digits_as_fit(magnitude_max: int) -> None:
    radix, digits = 2 * magnitude_max + 1, digits_per_word(magnitude_max)

    assert radix**digits <= 2**64 < radix ** (digits + 1)


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
    with pytest.raises(CodecError, match=f"it has to be {BYTES_MIN} or more"):
        split_update(single(3, [0], [1]), BYTES_MIN - 1)


def entropy_of(p: float) -> float:
    """Return the bits that each of the numbers takes that have a probability of `p`."""
    return float(-np.log2(p) - (1 - p) / p * np.log2(1 - p))


@pytest.mark.parametrize("density", [0.0003, 0.001, 0.01, 0.03, 0.05])
def test_uniform_positions_come_within_one_and_a_half_percent_of_the_entropy(
    density: float,
) -> None:
    random = np.random.default_rng(1)
    n = 3_000_000
    index = np.flatnonzero(random.random(n) < density).astype(np.uint32)
    count = random.choice(np.array([-1, 1], np.int32), index.size)
    entropy = entropy_of(index.size / n)

    encoded = pack_update(Update(0, n, 1000, index, count))

    # The header aside, which a larger model has once as well.
    assert 8 * (len(encoded) - HEADER_BYTES_MAX) / index.size <= 1.015 * (entropy + 1)
