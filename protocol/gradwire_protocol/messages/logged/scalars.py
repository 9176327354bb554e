"""LOGGED: what a worker has logged of its training, such as its loss, for people to look at.

A worker collects scalars, and sends what it has about once a second, on a stream of its own with
the lowest priority. Nothing of training waits for that, or depends on it. The next message is sent
when the last one has arrived, so messages come in the order of their numbers. One that is sent
again after a lost connection has the number that it had: nothing counts twice.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
import numpy.typing as npt

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    blob,
    integer,
    listing,
    text,
)

SERIES_MAX: Final = 256
"""Most names of one worker."""

SERIES_NAME_CHARACTERS_MAX: Final = 64

STEP_MAX: Final = 2**32 - 1

POINT: Final = np.dtype([("series", "<u2"), ("step", "<u4"), ("age", "<u4"), ("value", "<f8")])
"""A scalar: the index of its name, its step, how many milliseconds before its message it was
logged, and its value, which may be NaN."""

AGE_MAX: Final = 2**32 - 1

POINTS_MAX: Final = 1_024
"""Most scalars in a message: 18 KB."""

COUNT_MAX: Final = 2**53


@dataclass(frozen=True, slots=True)
class Logged(Record):
    """Scalars."""

    number: Annotated[int, integer(1, COUNT_MAX)]
    """Counts the messages of a worker."""
    names: Annotated[tuple[str, ...], listing(text(SERIES_NAME_CHARACTERS_MAX), SERIES_MAX)]
    """Names of series: points refer to them by their index."""
    points: Annotated[bytes, blob(0, POINT.itemsize * POINTS_MAX)]
    """Array of `POINT`."""
    dropped: Annotated[int, integer(0, COUNT_MAX)]
    """How many scalars, too many to be sent, the worker has dropped since its last message."""

    KIND: ClassVar[Kind] = Kind.LOGGED
    BYTES_MAX: ClassVar[int] = (
        SMALL_BYTES_MAX
        + SERIES_MAX * (4 * SERIES_NAME_CHARACTERS_MAX + 5)
        + POINT.itemsize * POINTS_MAX
    )

    @property
    def array(self) -> npt.NDArray[np.void]:
        """The scalars: shape (n,), dtype `POINT`, read-only.

        Raises `InvalidMessageError` if these are no whole points, or one has no name.
        """
        if len(self.points) % POINT.itemsize:
            raise InvalidMessageError(f"Logged: {len(self.points)} bytes are no whole points")
        found = np.frombuffer(self.points, POINT)
        if len(found) and found["series"].max() >= len(self.names):
            raise InvalidMessageError(
                f"Logged: a point of series {found['series'].max()} of {len(self.names)}"
            )
        if len(set(self.names)) < len(self.names):
            raise InvalidMessageError("Logged: a name for a second time")
        return found
