"""Records: a map whose every field is checked, and refused by name."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.schema import (
    COLLECTIONS_MAX,
    LIST_ITEMS_MAX,
    MAP_FIELDS_MAX,
    SHOWN_MAX,
    SMALL_BYTES_MAX,
    Check,
    Record,
    blob,
    boolean,
    integer,
    listing,
    mapping,
    optional,
    record,
    text,
)
from support.memory import peak_of
from support.wording import naming


@dataclass(frozen=True, slots=True)
class Inner(Record):
    number: Annotated[int, integer(0, 9)]


@dataclass(frozen=True, slots=True)
class Outer(Record):
    name: Annotated[str, text(10)]
    inner: Inner
    inners: Annotated[tuple[Inner, ...], listing(record(Inner), 3)]
    versions: Annotated[Mapping[int, int], mapping(integer(0, 9), integer(0, 9), 3)]


OUTER = Outer("name", Inner(1), (Inner(2), Inner(3)), {4: 5, 6: 7})
PLAIN = {
    "name": "name",
    "inner": {"number": 1},
    "inners": [{"number": 2}, {"number": 3}],
    "versions": [[4, 5], [6, 7]],
}

VALUES: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["name", "inner", "inners", "versions", "number"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*PLAIN, "number"])
            | st.text(max_size=3)
            | st.integers(0, 3)
            | st.none(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


# Fields.


@pytest.mark.parametrize(
    ("check", "value", "checked"),
    [
        (integer(-1, 5), -1, -1),
        (integer(-1, 5), 5, 5),
        (text(3), "", ""),
        (text(3), "\N{SNOWMAN} é", "\N{SNOWMAN} é"),
        (blob(1, 3), b"a", b"a"),
        (blob(1, 3), b"abc", b"abc"),
        (boolean, True, True),
        (boolean, False, False),
        (optional(integer(0, 5)), None, None),
        (optional(integer(0, 5)), 5, 5),
        (listing(integer(0, 5), 2), [], ()),
        (listing(integer(0, 5), 2), [1, 2], (1, 2)),
        (mapping(integer(0, 5), text(3), 2), [], {}),
        (mapping(integer(0, 5), text(3), 2), [[1, "a"], [2, "b"]], {1: "a", 2: "b"}),
    ],
)
def test_what_a_check_allows(check: Check, value: object, checked: object) -> None:
    assert check(value) == checked
    assert type(check(value)) is type(checked)


@pytest.mark.parametrize(
    ("check", "value", "named"),
    [
        (integer(-1, 5), -2, (-2, -1, 5)),
        (integer(-1, 5), 6, (6, -1, 5)),
        (integer(-1, 5), True, ("True", "integer")),
        (integer(-1, 5), 1.0, (1.0, "integer")),
        (integer(-1, 5), None, ("None", "integer")),
        (text(3), "abcd", ("'abcd'", "text", 3)),
        (text(3), "a\n", (r"'a\n'", "text")),
        (text(3), "\x1b[", (r"'\x1b['", "text")),
        (text(3), b"abc", ("b'abc'", "text")),
        (blob(1, 3), b"", ("b''", "byte string", 1, 3)),
        (blob(1, 3), b"abcd", ("b'abcd'", "byte string", 1, 3)),
        (blob(1, 3), "abc", ("'abc'", "byte string")),
        (boolean, 1, (1, "true", "false")),
        (boolean, None, ("None", "true", "false")),
        (optional(integer(0, 5)), 6, (6, 0, 5)),
        (listing(integer(0, 5), 2), [1, 2, 3], ("[1, 2, 3]", "list", 2)),
        (listing(integer(0, 5), 2), {}, ("{}", "list")),
        (listing(integer(0, 5), 2), [1, 6], (6, "integer")),
        (mapping(integer(0, 5), text(3), 2), {}, ("{}", "list")),
        (mapping(integer(0, 5), text(3), 1), [[1, ""], [2, ""]], ("list", 1)),
        (mapping(integer(0, 5), text(3), 2), [1], (1, "pair")),
        (mapping(integer(0, 5), text(3), 2), [[1, "a", 2]], ("pair",)),
        (mapping(integer(0, 5), text(3), 2), [[6, "a"]], (6, "integer")),
        (mapping(integer(0, 5), text(3), 2), [[1, 2]], (2, "text")),
        (mapping(integer(0, 5), text(3), 2), [[1, "a"], [1, "b"]], ("key", "twice")),
        (record(Inner), [], ("list", "map")),
        (record(Inner), {"number": 10}, ("number", 10, 0, 9)),
    ],
)
def test_what_a_check_refuses(check: Check, value: object, named: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match=naming(*named)):
        check(value)


def test_of_a_long_value_only_the_beginning_is_repeated() -> None:
    with pytest.raises(ValueError, match=naming("text", 3)) as refused:
        text(3)("x" * 1_000_000)

    assert str(refused.value).startswith("'" + "x" * (SHOWN_MAX - 1) + "…")


# Records.


def test_a_record_is_a_map_of_plain_values() -> None:
    assert OUTER.to_plain() == PLAIN
    assert msgpack.unpackb(OUTER.pack()) == PLAIN


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_record_is_read_as_it_was_written(kind: type[bytes]) -> None:
    assert Outer.parse(kind(OUTER.pack())) == OUTER


@pytest.mark.parametrize(
    ("plain", "named"),
    [
        ([], ("list", "map")),
        ({}, ("fields", "inner, inners, name, versions")),
        (PLAIN | {"more": 1}, ("fields", "more")),
        (PLAIN | {b"name": 1}, ("fields",)),
        (PLAIN | {"name": 1}, ("name", 1, "text")),
        (PLAIN | {"inner": {"number": 10}}, ("inner: number", 10)),
        (PLAIN | {"inners": [{"number": 1}, {}]}, ("inners", "fields")),
    ],
)
def test_a_field_is_refused_by_its_name(plain: object, named: tuple[object, ...]) -> None:
    assert Outer.parse(msgpack.packb(PLAIN)) == OUTER

    with pytest.raises(InvalidMessageError, match=naming("Outer", *named)):
        Outer.parse(msgpack.packb(plain))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        pytest.param(b"", "", id="nothing"),
        pytest.param(b"\x81\x01\x02", "", id="a key that is no text"),
        pytest.param(b"\xc1", "", id="no msgpack"),
        pytest.param(OUTER.pack()[:-1], "", id="cut short"),
        pytest.param(OUTER.pack() + b"\x00", "", id="something behind"),
        pytest.param(b"\xa1\xff", "", id="no UTF-8"),
        pytest.param(b"\x91" * 100_000, "", id="too deep"),
        pytest.param(b"\xdd\xff\xff\xff\xff", "", id="a list without its items"),
        pytest.param(b"\xdf\xff\xff\xff\xff", "", id="a map without its items"),
        pytest.param(b"\xd6\xff\xff\xff\xff\xff", "", id="a time"),
        pytest.param(b"\xd4\x05\x00", r"\d exceeds .*0", id="an extension"),
        pytest.param(
            b"\xdc\x80\x01" + bytes(4000),
            f"{LIST_ITEMS_MAX + 1} exceeds .*{LIST_ITEMS_MAX}",
            id="a long list",
        ),
        pytest.param(
            b"\xde\x00\x11" + bytes(4000),
            f"{MAP_FIELDS_MAX + 1} exceeds .*{MAP_FIELDS_MAX}",
            id="a large map",
        ),
    ],
)
def test_bytes_that_are_no_record_are_refused(payload: bytes, says: str) -> None:
    with pytest.raises(InvalidMessageError, match=f"^Outer: {says}"):
        Outer.parse(payload)


def test_a_record_that_is_too_long_is_refused_before_it_is_unpacked() -> None:
    fits, too_long = b"\xc1" * SMALL_BYTES_MAX, memoryview(b"\xc1" * (SMALL_BYTES_MAX + 1))

    with pytest.raises(InvalidMessageError, match=r"^Outer: ") as refused:
        Outer.parse(fits)
    assert "the limit is" not in str(refused.value)
    limit = naming("Outer", SMALL_BYTES_MAX + 1, SMALL_BYTES_MAX)
    with pytest.raises(InvalidMessageError, match=limit):
        Outer.parse(too_long)


@given(payload=st.binary(max_size=100))
def test_random_bytes_raise_nothing_but_invalid_message(payload: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        Outer.parse(payload)


@given(value=VALUES)
def test_random_values_raise_nothing_but_invalid_message(value: object) -> None:
    with pytest.raises(InvalidMessageError):
        Outer.parse(msgpack.packb(value))


@given(field=st.sampled_from(sorted(PLAIN)), value=VALUES)
def test_a_record_that_is_read_says_what_was_sent(field: str, value: object) -> None:
    plain = PLAIN | {field: value}
    parsed: Outer | None = None

    with suppress(InvalidMessageError):
        parsed = Outer.parse(msgpack.packb(plain))

    assert parsed is None or parsed.to_plain() == plain


def test_lists_are_counted_however_they_are_nested() -> None:
    """What is refused for their number takes little memory until then."""
    inner: list[list[int]] = [[]] * 64
    few = -(-COLLECTIONS_MAX // (len(inner) + 1))
    packed = msgpack.packb([inner] * few)
    assert len(packed) < SMALL_BYTES_MAX * 16

    class Large(Inner):
        BYTES_MAX = len(packed)

    def refuse() -> None:
        limit = f"more than {COLLECTIONS_MAX} lists and maps"
        with pytest.raises(InvalidMessageError, match=limit):
            Large.parse(packed)

    assert peak_of(refuse) < 64 * 2 * COLLECTIONS_MAX
