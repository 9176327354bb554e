"""`named_errors`: turns the codecs' errors, which have positions, into ours, which have names."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradwire.errors import NonFiniteError, OutOfRangeError
from gradwire_codecs import NonFiniteError as NotFinite
from gradwire_codecs import OutOfRangeError as OutOfRange
from gradwire_protocol.messages.layout import Layout


@contextmanager
def named_errors(layout: Layout, quantum: float) -> Iterator[None]:
    """Name the parameter in the codecs' errors from inside the block."""
    try:
        yield
    except NotFinite as error:
        raise NonFiniteError(
            f"parameter {layout.locate(error.index)} is {error.value}; nothing was sent"
        ) from None
    except OutOfRange as error:
        raise OutOfRangeError(
            f"parameter {layout.locate(error.index)} is {error.value:g}; the quantum of this "
            f"run, {quantum:g}, expresses magnitudes below {error.limit:g}. A run keeps "
            "its quantum: restart the master, or name another run (run=...), with "
            f"quantum={min(4 * quantum, 1.0)!r}"
        ) from None
