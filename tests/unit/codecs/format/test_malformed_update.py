"""Bytes that are no update are refused, and change nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import (
    MalformedUpdateError,
    Replica,
    Update,
    decode,
)
from gradwire_codecs.feedback.host_feedback import HostFeedback
from gradwire_codecs.format.header import BYTES, DENSE, EVERY, LISTED, PLAIN, pack_number
from gradwire_codecs.format.update import ELEMENTS_MAX, pack_update
from support.feedbacks import KINDS
from support.reference_decoder import reference_decode
from support.updates import changes, single, updates


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
    assert bool(reference_decode(body)) == bool(body)


@KINDS
def test_an_update_that_is_wrong_at_its_end_changes_nothing(kind: type[HostFeedback]) -> None:
    body = pack_update(single(4000, list(range(0, 4000, 7)), [1, -1, 3, 1] * 143))
    feedback = kind(np.zeros(4000, np.float32), Replica.zeros(4000))

    for damaged in (body[:-1], body + b"\x00", body[:-1] + bytes([body[-1] | 0x80])):
        with pytest.raises(MalformedUpdateError, match="do not code the 572 hits"):
            feedback.apply(damaged)
        with pytest.raises(MalformedUpdateError, match="do not code the 572 hits"):
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
# +1, 0, -3 and seven times 0.
COUNTS = bytes([1, 0, 253, *[0] * 7])

FIELDS: dict[int, dict[str, int]] = {
    PLAIN: {},
    LISTED: {"listed": 1, "positions": 2},
    EVERY: {"positions": 2},
    DENSE: {"magnitude_max": 3},
    BYTES: {},
}
CODED: dict[int, bytes] = {
    PLAIN: POSITIONS,
    LISTED: POSITIONS + LIST,
    EVERY: POSITIONS + MAGNITUDES,
    DENSE: WORD,
    BYTES: COUNTS,
}


def by_hand(form: int, **other: int) -> bytes:
    """Return an update of 10 elements, with other fields in its header."""
    fields = {"start": 0, "length": 10, "multiple": 100, "hits": 2, **FIELDS[form]}
    numbers = b"".join(map(pack_number, (fields | other).values()))
    return bytes([form]) + numbers + CODED[form]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (PLAIN, {0: 100, 2: -100}),
        (LISTED, {0: 100, 2: -300}),
        (EVERY, {0: 100, 2: -300}),
        (DENSE, {0: 100, 2: -300}),
        (BYTES, {0: 100, 2: -300}),
    ],
)
def test_the_description_is_what_is_read(form: int, expected: dict[int, int]) -> None:
    body = by_hand(form)

    assert changes(decode(body, 10)) == reference_decode(body) == expected


@pytest.mark.parametrize(
    ("form", "other", "says"),
    [
        (PLAIN, {"start": 1}, "elements 1 to 11 of a vector of 10"),
        (PLAIN, {"hits": 0}, "0 hits cannot be coded in 7 bytes"),
        (PLAIN, {"hits": 1}, r"its \d+ bytes do not code the 1 hits"),
        (PLAIN, {"hits": 3}, r"its \d+ bytes do not code the 3 hits"),
        (PLAIN, {"length": 3, "hits": 4}, "4 hits among elements 0 to 3"),
        (DENSE, {"hits": 11}, "11 hits among elements 0 to 10"),
        (PLAIN, {"hits": 9}, "9 hits cannot be coded in 7 bytes"),
        (PLAIN, {"length": 0}, "it covers no elements from 0 on"),
        (PLAIN, {"length": 2}, r"its \d+ bytes do not code"),
        (PLAIN, {"length": 2**32 - 1}, "elements 0 to 4294967295 of a vector of 10"),
        (PLAIN, {"multiple": 0}, "multiple=0; it has to be 1 to 16777216"),
        (PLAIN, {"multiple": 2**24 + 1}, "multiple=16777217; it has to be 1 to 16777216"),
        (LISTED, {"listed": 0}, "0 of 2 hits are listed"),
        (LISTED, {"listed": 3}, "3 of 2 hits are listed"),
        (LISTED, {"listed": 2}, r"its \d+ bytes do not code"),
        (LISTED, {"positions": 1}, r"its \d+ bytes do not code"),
        (LISTED, {"positions": 3}, r"its \d+ bytes do not code"),
        (LISTED, {"positions": 20}, "positions take 20 bytes, and the update has 11"),
        (EVERY, {"positions": 3}, r"its \d+ bytes do not code"),
        (DENSE, {"magnitude_max": 0}, "magnitude_max=0; it has to be 1 to 2147483647"),
        (DENSE, {"magnitude_max": 2**31}, "magnitude_max=2147483648; it has to be 1 to 2147483647"),
        (DENSE, {"magnitude_max": 2}, r"its \d+ bytes do not code"),
        (DENSE, {"magnitude_max": 2**31 - 1}, "bytes do not code"),
        (DENSE, {"hits": 1}, r"its \d+ bytes do not code the 1 hits"),
        (DENSE, {"hits": 3}, r"its \d+ bytes do not code the 3 hits"),
        (DENSE, {"length": 42}, "elements 0 to 42 of a vector of 10"),
        (BYTES, {"hits": 1}, r"its \d+ bytes do not code the 1 hits"),
        (BYTES, {"hits": 3}, r"its \d+ bytes do not code the 3 hits"),
        (BYTES, {"hits": 0}, "0 hits cannot be coded in"),
        (BYTES, {"hits": 11}, "11 hits among elements 0 to 10"),
        (BYTES, {"length": 9}, "its 15 bytes have not one each for elements 0 to 9"),
        (BYTES, {"length": 42}, "elements 0 to 42 of a vector of 10"),
    ],
)
def test_a_header_out_of_range_is_named(form: int, other: dict[str, int], says: str) -> None:
    body = by_hand(form, **other)

    with pytest.raises(MalformedUpdateError, match=says):
        decode(body, 10)


@pytest.mark.parametrize("form", [0, 6, 255])
def test_a_format_that_is_none_is_named(form: int) -> None:
    with pytest.raises(MalformedUpdateError, match=f"unknown format {form}"):
        decode(bytes([form]) + by_hand(PLAIN)[1:], 10)


@pytest.mark.parametrize("form", [PLAIN, LISTED, EVERY, DENSE, BYTES])
def test_an_update_that_is_cut_off_anywhere_is_refused(form: int) -> None:
    body = by_hand(form)

    for size in range(1, len(body)):  # of no byte, it is one that changes nothing
        with pytest.raises(MalformedUpdateError):
            decode(body[:size], 10)


@pytest.mark.parametrize("number", [b"\x80\x00", b"\xff\xff\xff\xff\x10", b"\x80" * 6])
def test_a_number_has_one_form_and_a_limit(number: bytes) -> None:
    body = by_hand(PLAIN)

    with pytest.raises(MalformedUpdateError, match="a number in it is"):
        decode(body[:1] + number + body[2:], 10)


@KINDS
def test_an_update_with_a_byte_each_that_is_wrong_changes_nothing(
    kind: type[HostFeedback],
) -> None:
    body = pack_update(single(4000, list(range(4000)), [100, -127] * 2000))
    assert body[0] == BYTES
    feedback = kind(np.zeros(4000, np.float32), Replica.zeros(4000))

    for damaged in (body[:-1], body + b"\x00", body[:-1] + b"\x80", body[:-1] + b"\x00"):
        with pytest.raises(MalformedUpdateError):
            feedback.apply(damaged)
        with pytest.raises(MalformedUpdateError):
            feedback.replica.apply(damaged)

    assert not feedback.replica.values.any()
    assert not feedback.parameters.any()


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
