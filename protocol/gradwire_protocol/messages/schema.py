"""`Record`: a msgpack map whose fields are checked one by one.

A message from the network is a map from field names to plain values. The type of each field of a
record says what the field may hold. Anything else (an unknown or missing field, a wrong type, a
number out of range, a text or list that is too long) is refused with the name of the field, the
value and the limit.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, Union, get_args, get_origin
from zlib import compress, decompressobj
from zlib import error as ZlibError  # noqa: N812 (a class, whatever its name)

import msgpack

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.limits import KIB
from gradwire_protocol.messages.kinds import Kind

Check: TypeAlias = Callable[[object], Any]
"""Returns the value of a field as the record holds it, or raises `ValueError`."""

SHOWN_MAX = 60
"""Characters of an offending value that an error message repeats."""

SMALL_BYTES_MAX: Final = 8 * KIB
"""Bytes of a record without long lists: a reason of a thousand characters at four bytes each, and
as much again."""

LIST_ITEMS_MAX: Final = 2**15
"""Longer than any list a record may hold; the field's check then names the field."""

MAP_FIELDS_MAX: Final = 16
"""More than any record has fields."""

COLLECTIONS_MAX: Final = 2**16
"""Lists and maps in one record, at any depth. One byte on the wire can become an object of 64
bytes, so 2 MiB could become 128 MiB before any check. This many take 4 MiB. The largest honest
record, a WELCOME with 2^14 tensors, 2^12 peers and as many versions, has 41,000."""


COMPRESSION_LEVEL: Final = 1
"""Of zlib: a higher one takes longer, and makes what workers log no smaller."""


class Record:
    """Base of dataclasses that travel as msgpack maps.

    A subclass is a frozen dataclass. The type of each field is bool, another record or an annotated
    type with a `Check`; any of these can be combined with None.
    """

    KIND: ClassVar[Kind]
    """The kind of message; not set for a record inside another one."""

    CHECKS: ClassVar[Mapping[str, Check]]
    """The check of each field, derived from its type."""

    BYTES_MAX: ClassVar[int] = SMALL_BYTES_MAX
    """Most bytes on the wire. A byte can unpack to an empty list of 64 bytes before any check, so
    the length is checked first."""

    LIST_ITEMS_MAX: ClassVar[int] = LIST_ITEMS_MAX
    """Longest list that is unpacked; 0 for a record without lists."""

    def __init_subclass__(cls) -> None:
        """Derive `CHECKS`."""
        checks: dict[str, Check] = {}
        for name, hint in cls.__annotations__.items():
            origin: object = get_origin(hint)
            if origin is not ClassVar:
                checks[name] = _check_of(hint)
        cls.CHECKS = checks

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain values for msgpack."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    def pack(self) -> bytes:
        """Return the record as msgpack bytes."""
        packed: bytes = msgpack.packb(self.to_plain())
        return packed

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Make a record from a map after checking every field.

        Raises
        ------
        ValueError
            If a field is missing, unknown or breaks its check.
        """
        if not isinstance(plain, dict):
            raise ValueError(f"a map is needed, not a {type(plain).__name__}")  # noqa: TRY004
        if plain.keys() != cls.CHECKS.keys():
            wrong = sorted(map(str, plain.keys() ^ cls.CHECKS.keys()))
            raise ValueError(f"these fields are missing or unknown: {', '.join(wrong)[:SHOWN_MAX]}")
        checked = {}
        for name, check in cls.CHECKS.items():
            try:
                checked[name] = check(plain[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return cls(**checked)

    @classmethod
    def check_size(cls, size: int) -> None:
        """Raise `InvalidMessageError` if a record has no so many bytes."""
        if size > cls.BYTES_MAX:
            raise InvalidMessageError(f"{cls.__name__}: {size} bytes; the limit is {cls.BYTES_MAX}")

    @classmethod
    def parse(cls, payload: bytes | bytearray | memoryview) -> Self:
        """Parse the msgpack bytes of a record.

        Raises
        ------
        InvalidMessageError
            If the bytes are no valid record of this kind.
        """
        cls.check_size(memoryview(payload).nbytes)
        try:
            count = _CollectionLimit(COLLECTIONS_MAX)
            plain = msgpack.unpackb(
                payload,
                use_list=True,
                list_hook=count,
                object_hook=count,
                strict_map_key=True,
                max_array_len=cls.LIST_ITEMS_MAX,
                max_map_len=MAP_FIELDS_MAX,
                max_ext_len=0,
            )
            return cls.from_plain(plain)
        except (ValueError, RecursionError, msgpack.UnpackException) as error:
            raise InvalidMessageError(f"{cls.__name__}: {error}") from None


class CompressedRecord(Record):
    """Base of records that travel compressed, as zlib data (RFC 1950): of many similar numbers."""

    def pack(self) -> bytes:
        """Return the record as compressed msgpack bytes."""
        return compress(super().pack(), COMPRESSION_LEVEL)

    @classmethod
    def parse(cls, payload: bytes | bytearray | memoryview) -> Self:
        """Parse the compressed bytes of a record.

        No more is decompressed than the longest record has, whatever the bytes promise.

        Raises
        ------
        InvalidMessageError
            If the bytes are not the whole zlib data of a valid record of this kind, and that alone.
        """
        cls.check_size(memoryview(payload).nbytes)
        decompressor = decompressobj()
        try:
            packed = decompressor.decompress(payload, cls.BYTES_MAX + 1)
        except ZlibError as error:
            raise InvalidMessageError(f"{cls.__name__}: {error}") from None
        cls.check_size(len(packed))
        if not decompressor.eof or decompressor.unused_data:
            raise InvalidMessageError(
                f"{cls.__name__}: zlib data without an end, or more behind it"
            )
        return super().parse(packed)


class _CollectionLimit:
    """Counts the collections of a record, up to a limit."""

    __slots__ = ("_left",)

    def __init__(self, limit: int) -> None:
        self._left = limit

    def __call__(self, collection: object) -> object:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"the record has more than {COLLECTIONS_MAX} lists and maps")
        return collection


def _check_of(hint: Any) -> Check:
    origin: object = get_origin(hint)
    if origin is Annotated:
        check: Check = hint.__metadata__[0]
        return check
    if origin in (Union, UnionType):
        kind, none = get_args(hint)
        assert none is NoneType, f"{hint} is neither one type nor one type or None"
        return optional(_check_of(kind))
    return boolean if hint is bool else record(hint)


def integer(low: int, high: int) -> Check:
    """Allow integers from `low` to `high`, both inclusive."""

    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{_abbreviate(value)} is not an integer from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """Allow numbers from `low` to `high`, both inclusive, and no NaN."""

    def check(value: object) -> float:
        if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
            raise ValueError(f"{_abbreviate(value)} is not a number from {low:g} to {high:g}")
        return float(value)  # type: ignore[arg-type]

    return check


def choice(*choices: object) -> Check:
    """Allow these values only."""

    def check(value: object) -> object:
        if isinstance(value, bool) or value not in choices:
            raise ValueError(f"{_abbreviate(value)} is none of {', '.join(map(repr, choices))}")
        return value

    return check


def text(length_max: int) -> Check:
    """Allow printable texts of at most `length_max` characters."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > length_max or not value.isprintable():
            raise ValueError(
                f"{_abbreviate(value)} is not a text of at most {length_max} characters"
            )
        return value

    return check


def blob(low: int, high: int) -> Check:
    """Allow byte strings of `low` to `high` bytes."""

    def check(value: object) -> bytes:
        if not isinstance(value, bytes) or not low <= len(value) <= high:
            raise ValueError(f"{_abbreviate(value)} is not a byte string of {low} to {high} bytes")
        return value

    return check


def boolean(value: object) -> bool:
    """Allow true and false."""
    if not isinstance(value, bool):
        raise ValueError(f"{_abbreviate(value)} is not true or false")  # noqa: TRY004
    return value


def optional(check: Check) -> Check:
    """Allow nil as well."""
    return lambda value: None if value is None else check(value)


def listing(check: Check, length_max: int) -> Check:
    """Allow lists of at most `length_max` items; the record holds a tuple."""

    def check_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > length_max:
            raise ValueError(f"{_abbreviate(value)} is not a list of at most {length_max} items")
        return tuple(map(check, value))

    return check_all


def mapping(key: Check, item: Check, length_max: int) -> Check:
    """Allow lists of pairs with distinct keys; the record holds a dict.

    A msgpack map with integer keys would need every reader to be configured to accept them.
    """

    def check_all(value: object) -> dict[Any, Any]:
        if not isinstance(value, list) or len(value) > length_max:
            raise ValueError(f"{_abbreviate(value)} is not a list of at most {length_max} pairs")
        checked = {}
        for pair in value:
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError(f"{_abbreviate(pair)} is not a pair")
            checked[key(pair[0])] = item(pair[1])
        if len(checked) != len(value):
            raise ValueError("a key occurs twice")
        return checked

    return check_all


def record(kind: type[Record]) -> Check:
    """Allow a nested record."""
    return kind.from_plain


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_plain()
    if isinstance(value, Mapping):
        return [[key, _plain(item)] for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _abbreviate(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN_MAX else shown[:SHOWN_MAX] + "…"
