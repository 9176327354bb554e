"""What was logged in a run as bytes, for its checkpoint and for a standby.

::

    8 bytes         length h of the head, little-endian
    h               head: a msgpack map, checked field by field as a message is
    rest            for each worker in turn, of its buckets: when, how many, sums, lowest, highest

Series are saved as they are kept, so a run that goes on from it goes on exactly: nothing is counted
twice. What is large is copied once, and never packed: neither the event loop nor another thread is
held up. `Series.save` makes it, and `Series.restored` reads it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.checkpoint import LOGGED_BYTES_MAX
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX, TENSORS_MAX
from gradwire_protocol.messages.operating.histograms import (
    HISTOGRAM,
    HISTOGRAMS_MAX,
    LAYERS_MAX,
)
from gradwire_protocol.messages.operating.scalars import (
    COUNT_MAX,
    SERIES_MAX,
    SERIES_NAME_CHARACTERS_MAX,
    STEP_MAX,
)
from gradwire_protocol.messages.schema import Record, blob, integer, listing, number, record, text

SECONDS_MAX: Final = 1e12

BOARDS_MAX: Final = 2**14
"""Most workers whose series are saved: of more, those with the lowest ranks."""

SENDERS_MAX: Final = 2**12
"""Most workers of which it is saved which messages were here: of more, those that were heard last.
147 KB."""

SENDER: Final = np.dtype(
    [("rank", "<u4"), ("worker", f"V{WORKER_ID_BYTES}"), ("newest", "<u8"), ("seen", "<u8")]
)
"""A worker, the number of its newest message, and a bit for each of the 64 up to that one, the
lowest for the newest: whether it was here."""

COLUMNS: Final = (
    ("_count", np.dtype("<u4")),
    ("_total", np.dtype("<f8")),
    ("_low", np.dtype("<f8")),
    ("_high", np.dtype("<f8")),
)
"""The arrays of a `Board`, each of shape (series, buckets): 28 bytes for a bucket."""

SECONDS: Final = np.dtype("<f8")
"""Of the array that says when: of shape (buckets,)."""

HEAD: Final = struct.Struct("<Q")

FRAMES_MAX: Final = 65


@dataclass(frozen=True, slots=True)
class SavedBoard(Record):
    """The series of one worker: see `Board`."""

    rank: Annotated[int, integer(0, WORKERS_MAX - 1)]
    width: Annotated[int, integer(1, 2 * STEP_MAX)]
    first: Annotated[int, integer(0, STEP_MAX)]
    """The number of the first bucket."""
    names: Annotated[tuple[str, ...], listing(text(SERIES_NAME_CHARACTERS_MAX), SERIES_MAX)]
    columns: Annotated[int, integer(0, 2**20)]
    """How many buckets each series has."""

    @property
    def nbytes(self) -> int:
        """How many bytes its arrays take."""
        cell = sum(dtype.itemsize for _, dtype in COLUMNS)
        return self.columns * (SECONDS.itemsize + cell * len(self.names))


@dataclass(frozen=True, slots=True)
class SavedFrame(Record):
    """The histograms of one step: see `Frame`."""

    step: Annotated[int, integer(0, STEP_MAX)]
    seconds: Annotated[float, number(0, SECONDS_MAX)]
    rank: Annotated[int, integer(0, WORKERS_MAX - 1)]
    tensors: Annotated[int, integer(1, TENSORS_MAX)]
    names: Annotated[tuple[str, ...], listing(text(NAME_CHARACTERS_MAX), LAYERS_MAX)] | None
    """None for those of the frame before."""
    histograms: Annotated[bytes, blob(0, HISTOGRAM.itemsize * HISTOGRAMS_MAX)]


@dataclass(frozen=True, slots=True)
class SavedHistograms(Record):
    """The histograms of a run: see `LayerHistograms`."""

    taken: Annotated[int, integer(0, COUNT_MAX)]
    dropped: Annotated[int, integer(0, COUNT_MAX)]
    stride: Annotated[int, integer(1, COUNT_MAX)]
    frames: Annotated[tuple[SavedFrame, ...], listing(record(SavedFrame), FRAMES_MAX)]
    """The newest is the last."""
    keeps_newest: bool
    """Whether the newest is one that is kept also when there is a newer one."""
    senders: Annotated[bytes, blob(0, SENDER.itemsize * SENDERS_MAX)]
    """Array of `SENDER`."""


@dataclass(frozen=True, slots=True)
class SavedHead(Record):
    """All that was logged in a run, but for the arrays: see `Series`."""

    seconds: Annotated[float, number(0, SECONDS_MAX)]
    """How long ago the first of it was logged; 0 if nothing was."""
    taken: Annotated[int, integer(0, COUNT_MAX)]
    dropped: Annotated[int, integer(0, COUNT_MAX)]
    columns_max: Annotated[int, integer(1, 2**20)]
    boards: Annotated[tuple[SavedBoard, ...], listing(record(SavedBoard), BOARDS_MAX)]
    senders: Annotated[bytes, blob(0, SENDER.itemsize * SENDERS_MAX)]
    """Array of `SENDER`."""
    histograms: SavedHistograms

    BYTES_MAX: ClassVar[int] = LOGGED_BYTES_MAX


@dataclass(frozen=True, slots=True)
class SavedSeries:
    """A copy of all that was logged in a run."""

    head: SavedHead
    arrays: Sequence[bytes]
    """In the order of the boards."""

    def pieces(self) -> list[bytes]:
        """Return it as bytes, one after the other."""
        head = self.head.pack()
        return [HEAD.pack(len(head)) + head, *self.arrays]


def parse_saved(data: memoryview) -> tuple[SavedHead, memoryview]:
    """Return the head of what was saved, and its arrays; `InvalidMessageError` if it is damaged."""
    if len(data) < HEAD.size:
        raise InvalidMessageError(f"series: {len(data)} bytes")
    (size,) = HEAD.unpack_from(data)
    head = SavedHead.parse(data[HEAD.size : HEAD.size + size])
    arrays = data[HEAD.size + size :]
    wanted = sum(board.nbytes for board in head.boards)
    if len(arrays) != wanted:
        raise InvalidMessageError(f"series: {len(arrays)} bytes of arrays; the head says {wanted}")
    return head, arrays


def array_of(data: bytes | memoryview, dtype: npt.DTypeLike, what: str) -> npt.NDArray[Any]:
    """Return an array of bytes that were saved, or raise `InvalidMessageError`."""
    if len(data) % np.dtype(dtype).itemsize:
        raise InvalidMessageError(f"{what}: {len(data)} bytes are no whole numbers")
    return np.frombuffer(data, dtype)
