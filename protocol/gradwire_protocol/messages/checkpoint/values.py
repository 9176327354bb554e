"""Parameters in a checkpoint: the integers of a replica as floats that are the same numbers.

A parameter is an integer times two to the power of the quantum's exponent. A tensor is F32 where
float32 has all of its numbers, and F64 where one of them takes more than 24 bits; what an optimizer
keeps is I32, the integers themselves. So each number can be read back exactly, and one that lies
between two quanta was never written.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.buffers.layout import WIDTHS, dtype_of
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import STATE
from gradwire_protocol.messages.snapshots import ELEMENT_BYTES

Int32Array: TypeAlias = npt.NDArray[np.int32]

Kinds: TypeAlias = tuple[str, ...]
"""The type of each tensor of a layout in a file: F32, F64 or I32."""

FLOAT32_QUANTA_MAX: Final = 2**24
"""Up to this number of quanta, float32 has every integer."""

PIECE_BYTES: Final = MIB
"""Bytes that are checked at once."""

PIECE_ELEMENTS: Final = PIECE_BYTES // ELEMENT_BYTES
"""Elements of a replica that are written or read at once."""


def kinds_of(layout: Layout, quanta: Int32Array) -> Kinds:
    """Return the smallest type of each tensor that has all of its numbers."""
    return tuple(
        "I32" if name.startswith(STATE) else "F32" if _fits_float32(part) else "F64"
        for name, part in _parts_of(layout, quanta)
    )


def encoded(
    quanta: Int32Array, layout: Layout, kinds: Kinds, exponent: int
) -> Iterator[memoryview]:
    """Yield the integers of a replica as they are in a file, piece by piece."""
    for kind, (_, part) in zip(kinds, _parts_of(layout, quanta), strict=True):
        for piece in _in_pieces(part):
            yield _encoded(piece, exponent, kind).data.cast("B")


def decode(body: memoryview, layout: Layout, kinds: Kinds, exponent: int) -> memoryview:
    """Replace parameters by their integers, which take no more room; return these.

    Parameters
    ----------
    body : memoryview of bytes
        What `encoded` has yielded, and possibly more. It has to be writable.

    Raises
    ------
    ValueError
        If they are not what `encoded` yields.
    """
    quanta: Int32Array = np.frombuffer(body, "<i4", layout.elements)
    at = 0
    for kind, (name, part) in zip(kinds, _parts_of(layout, quanta), strict=True):
        for target in _in_pieces(part):
            size = WIDTHS[kind] * len(target)
            source = np.frombuffer(body[at : at + size], dtype_of(kind))
            at += size
            if kind == "I32":
                target[:] = source
                continue
            with np.errstate(all="ignore"):  # what is no integer differs when it is encoded again
                numbers = np.ldexp(source.astype(np.float64), -exponent).astype(np.int64)
                integers = numbers.astype("<i4")
            if _encoded(integers, exponent, kind).tobytes() != source.tobytes():
                raise ValueError(f"parameter {name!r} has a value between two quanta")
            target[:] = integers
    if kinds_of(layout, quanta) != kinds:
        raise ValueError(f"its parameters are not all of the types {', '.join(set(kinds))}")
    return body[: ELEMENT_BYTES * layout.elements]


def _parts_of(layout: Layout, quanta: Int32Array) -> Iterator[tuple[str, Int32Array]]:
    """Yield the name and the integers of each tensor."""
    at = 0
    for tensor in layout.tensors:
        yield tensor.name, quanta[at : at + tensor.elements]
        at += tensor.elements


def _in_pieces(part: Int32Array) -> Iterator[Int32Array]:
    return (part[at : at + PIECE_ELEMENTS] for at in range(0, len(part), PIECE_ELEMENTS))


def _fits_float32(quanta: Int32Array) -> bool:
    """Return whether float32 has all of these integers."""
    if not quanta.size or max(-int(quanta.min()), int(quanta.max())) <= FLOAT32_QUANTA_MAX:
        return True
    return all(
        np.array_equal(each.astype(np.float32).astype(np.int64), each)
        for each in _in_pieces(quanta)
    )


def _encoded(quanta: Int32Array, exponent: int, kind: str) -> npt.NDArray[Any]:
    """Return integers as they are in a file: exactly."""
    if kind == "I32":
        return quanta
    return np.ldexp(quanta.astype(np.float64), exponent).astype(f"<f{WIDTHS[kind]}")
