"""`SavedSeries`: what was logged in a run, as bytes for its checkpoint."""

import zlib
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.checkpoint.format import SERIES_BYTES_MAX
from gradwire_protocol.messages.fields import RANK
from gradwire_protocol.messages.logged.scalars import (
    COUNT_MAX,
    SERIES_NAME_CHARACTERS_MAX,
    STEP_MAX,
)
from gradwire_protocol.messages.schema import Record, blob, integer, listing, number, text

CELLS_MAX: Final = 2**19
"""Most buckets of a run: 21 MB."""

COLUMNS_MAX: Final = 2**10
COLUMNS_MIN: Final = 2**5
"""Most and fewest buckets of a series."""

SERIES_MAX: Final = CELLS_MAX // COLUMNS_MIN
"""Most series of a run: 200 workers with 81 each."""

SAVED_MAX: Final = 2**17
"""Most buckets that are saved: of more, neighbours become one."""

SAVED_BUCKET_BYTES: Final = 48
"""Its number, and the five numbers in it."""


@dataclass(frozen=True, slots=True)
class SavedSeries(Record):
    """The series of a run, one after the other: see `Series`."""

    seconds: Annotated[float, number(0, 1e12)]
    """How long after the first scalar the last one came."""
    taken: Annotated[int, integer(0, COUNT_MAX)]
    dropped: Annotated[int, integer(0, COUNT_MAX)]
    ranks: Annotated[tuple[int, ...], listing(RANK, SERIES_MAX)]
    names: Annotated[tuple[str, ...], listing(text(SERIES_NAME_CHARACTERS_MAX), SERIES_MAX)]
    widths: Annotated[tuple[int, ...], listing(integer(1, 2 * STEP_MAX), SERIES_MAX)]
    """Steps in a bucket."""
    counts: Annotated[tuple[int, ...], listing(integer(0, COLUMNS_MAX), SERIES_MAX)]
    """Buckets that hold something."""
    buckets: Annotated[bytes, blob(0, SAVED_BUCKET_BYTES * SAVED_MAX)]
    """Array of little-endian float64 and shape (6, n): the numbers of all buckets, then what is in
    them."""

    BYTES_MAX: ClassVar[int] = SERIES_BYTES_MAX

    def compressed(self) -> bytes:
        """Return it as bytes."""
        return zlib.compress(self.pack(), level=1)

    @classmethod
    def decompressed(cls, data: bytes) -> "SavedSeries":
        """Return what was compressed, or raise `InvalidMessageError` if it is damaged."""
        try:
            return cls.parse(zlib.decompressobj().decompress(data, cls.BYTES_MAX))
        except zlib.error as error:
            raise InvalidMessageError(f"series: {error}") from None
