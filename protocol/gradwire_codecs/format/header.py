"""The header of an encoded update; protocol/README.md describes it byte by byte.

Reading it is compiled, too: it is most of the work of reading a small update.
"""

from typing import Final

from gradwire_codecs.arrays import Int64Array, UInt8Array
from gradwire_codecs.format.bits import signed
from gradwire_codecs.kernels.compiled import compiled, internal

PLAIN: Final = 1
"""Sparse; every count is +1 or -1."""
LISTED: Final = 2
"""Sparse; the hits with larger magnitudes are listed."""
EVERY: Final = 3
"""Sparse; with every magnitude."""
DENSE: Final = 4
BYTES: Final = 5
"""A signed byte for every element."""

INT32_MAX: Final = 2**31 - 1

MULTIPLE_MAX: Final = 2**24
"""Largest threshold in quanta: up to here its product with the quantum is exact in float32."""

NUMBER_BYTES_MAX: Final = 5

HEADER_BYTES_MAX: Final = 1 + 5 * NUMBER_BYTES_MAX + 4
"""Size of the largest header: a threshold takes 4 bytes at most."""

FORMAT: Final = 0
START: Final = 1
STOP: Final = 2
"""One more than the last element covered."""
MULTIPLE: Final = 3
"""The threshold in quanta."""
HITS: Final = 4
LISTED_HITS: Final = 5
MAGNITUDE_MAX: Final = 6
POSITIONS_BYTES: Final = 7
OFFSET: Final = 8
"""Bytes read so far: after the whole header, where the hits begin."""
FIELDS: Final = 9
"""Length of the array that a header is read into. The indices are above; fields that a format does
not have are 0."""

VALID: Final = 0
NO_NUMBER: Final = -1
UNKNOWN_FORMAT: Final = -2
NO_HITS: Final = -3
NO_LIST: Final = -4
NO_MAGNITUDE: Final = -5
NO_ELEMENTS: Final = -6
NO_MULTIPLE: Final = -7
BEYOND_VECTOR: Final = -8
NO_POSITIONS: Final = -9
HITS_NOT_CODED: Final = -10
TOO_LARGE: Final = -11
TOO_MANY_HITS: Final = -12
NO_BYTE_EACH: Final = -13

FAULTS: Final = {
    NO_NUMBER: "the header is cut off, or a number in it is 2^32 or more, or longer than need be",
    UNKNOWN_FORMAT: "unknown format {format}",
    NO_HITS: "{hits} hits cannot be coded in {bytes} bytes",
    TOO_MANY_HITS: "{hits} hits among elements {start} to {stop}",
    NO_BYTE_EACH: "its {bytes} bytes have not one each for elements {start} to {stop}",
    NO_LIST: "{listed} of {hits} hits are listed; it has to be 1 to {hits}",
    NO_MAGNITUDE: f"magnitude_max={{magnitude_max}}; it has to be 1 to {INT32_MAX}",
    NO_ELEMENTS: "it covers no elements from {start} on",
    NO_MULTIPLE: f"multiple={{multiple}}; it has to be 1 to {MULTIPLE_MAX}",
    BEYOND_VECTOR: "it covers elements {start} to {stop} of a vector of {elements}",
    NO_POSITIONS: "its positions take {positions} bytes, and the update has {bytes} in all",
    HITS_NOT_CODED: "its {bytes} bytes do not code the {hits} hits that its header announces",
    TOO_LARGE: f"an element changes by more than {INT32_MAX} quanta",
}
"""The message for each error that a kernel returns."""


@internal
def _number(data: UInt8Array, at: int) -> tuple[int, int]:
    """Read a number; return it, or `NO_NUMBER`, and the place after it."""
    number = 0
    for shift in range(0, 7 * NUMBER_BYTES_MAX, 7):
        if at >= data.size:
            break
        byte = signed(data[at])
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 32 or (byte == 0 and shift):
                break
            return number, at
    return NO_NUMBER, at


@compiled
def read_header(data: UInt8Array, elements: int, header: Int64Array) -> int:
    """Read the header of an encoded update into `header`; return `VALID` or a key of `FAULTS`.

    Parameters
    ----------
    data : ndarray of shape (bytes,), dtype uint8
        The encoded update.
    elements : int
        Length of the vector that the update has to fit.
    header : ndarray of shape (FIELDS,), dtype int64
    """
    header[:] = 0
    if not data.size:
        return NO_NUMBER
    form = header[FORMAT] = data[0]
    if not PLAIN <= form <= BYTES:
        return UNKNOWN_FORMAT
    header[OFFSET] = 1
    for field in range(START, POSITIONS_BYTES + 1):
        if (
            field <= HITS
            or (field == LISTED_HITS and form == LISTED)
            or (field == MAGNITUDE_MAX and form == DENSE)
            or (field == POSITIONS_BYTES and form in (LISTED, EVERY))
        ):
            header[field], header[OFFSET] = _number(data, header[OFFSET])
            if header[field] == NO_NUMBER:
                return NO_NUMBER
    header[STOP] += header[START]  # the update has the length
    return _check_fields(header, data.size - header[OFFSET], elements)


@internal
def _check_fields(header: Int64Array, left: int, elements: int) -> int:
    """Check a header against the bytes that follow it and the length of the vector."""
    form = header[FORMAT]
    if header[STOP] == header[START]:
        return NO_ELEMENTS
    if header[STOP] > elements:
        return BEYOND_VECTOR
    if not 1 <= header[MULTIPLE] <= MULTIPLE_MAX:
        return NO_MULTIPLE
    # A hit takes at least two bits, a digit of a dense update at least one, any in format 5 eight.
    if not 1 <= header[HITS] <= (8 if form == DENSE else 4) * left:
        return NO_HITS
    if header[HITS] > header[STOP] - header[START]:
        return TOO_MANY_HITS
    if form == BYTES and header[STOP] - header[START] != left:
        return NO_BYTE_EACH
    if form == LISTED and not 1 <= header[LISTED_HITS] <= header[HITS]:
        return NO_LIST
    if form == DENSE and not 1 <= header[MAGNITUDE_MAX] <= INT32_MAX:
        return NO_MAGNITUDE
    return VALID if header[POSITIONS_BYTES] <= left else NO_POSITIONS


def describe_fault(code: int, header: Int64Array, size: int, elements: int) -> str:
    """Return the message of `FAULTS` for an update of `size` bytes and a vector of `elements`."""
    return FAULTS[code].format(
        format=header[FORMAT],
        start=header[START],
        stop=header[STOP],
        hits=header[HITS],
        listed=header[LISTED_HITS],
        magnitude_max=header[MAGNITUDE_MAX],
        positions=header[POSITIONS_BYTES],
        multiple=header[MULTIPLE],
        bytes=size,
        elements=elements,
    )


def pack_number(number: int) -> bytes:
    """Encode a number below 2^32 for a header."""
    packed = bytearray()
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


def numbers_bytes(numbers: list[int]) -> int:
    """Return the bytes that numbers take in a header."""
    return sum(len(pack_number(number)) for number in numbers)


def pack_header(form: int, start: int, length: int, multiple: int, numbers: list[int]) -> bytes:
    """Return a header; `numbers` are the number of hits and the further fields of the format."""
    return bytes([form]) + b"".join(map(pack_number, [start, length, multiple, *numbers]))
