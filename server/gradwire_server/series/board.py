"""`Board`: what one worker has logged, its series side by side, in buckets of steps.

A bucket has how many scalars fell into it, their sum, and the lowest and the highest. When the
steps no longer fit, two neighbours become one: so what is old is as fine as what is new, and a
spike stays visible, whatever the length of a run.
"""

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.operating.scalars import STEP_MAX
from gradwire_server.series.saved import COLUMNS, SECONDS, SavedBoard, array_of

COLUMNS_AT_FIRST: Final = 2**5
"""Buckets that a series begins with; it is given more as its steps go on."""


LATEST_SECONDS: Final = 5.0
"""Within this time, what was logged is not in order."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The buckets of a series that hold something, by step: arrays of one length."""

    steps: int
    """For how many steps each is."""
    step: npt.NDArray[np.int64]
    """The first of these."""
    seconds: npt.NDArray[np.float64]
    """When the last scalar of these steps was logged, of whatever series."""
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    count: npt.NDArray[np.int64]

    def coarser(self, steps: int) -> "Curve":
        """Return it with buckets of more steps, a multiple."""
        if steps == self.steps:
            return self
        numbers, into = np.unique(self.step // steps, return_inverse=True)
        count = np.zeros(len(numbers), np.int64)
        total, seconds = np.zeros(len(numbers)), np.full(len(numbers), -np.inf)
        low, high = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
        np.add.at(count, into, self.count)
        np.maximum.at(seconds, into, self.seconds)
        with np.errstate(invalid="ignore"):  # of infinities and NaN
            np.minimum.at(low, into, self.low)
            np.maximum.at(high, into, self.high)
            np.add.at(total, into, self.mean * self.count)
            return Curve(steps, numbers * steps, seconds, total / count, low, high, count)

    def part(self, at: npt.NDArray[np.intp]) -> "Curve":
        """Return some of its buckets."""
        return Curve(
            self.steps,
            self.step[at],
            self.seconds[at],
            self.mean[at],
            self.low[at],
            self.high[at],
            self.count[at],
        )


@dataclass(frozen=True, slots=True)
class Front:
    """How far a worker has come."""

    step: int
    """The first step of its last bucket: nothing is expected for those before."""
    latest: int
    """The same of what was logged in the last seconds: less, where a worker has begun once more."""
    seconds: float
    """When something was logged last."""


class Board:
    """The series of one worker.

    Parameters
    ----------
    columns_max : int
        Most buckets of a series, a power of two.
    """

    def __init__(self, columns_max: int) -> None:
        self._columns_max = columns_max
        columns = self._columns = min(COLUMNS_AT_FIRST, columns_max)
        self.width = 1
        """Steps in a bucket, a power of two."""
        self._first: int | None = None
        """The number of the first bucket: its first step, divided by the width."""
        self._rows: dict[str, int] = {}
        self._count = np.zeros((0, columns), np.uint32)
        self._total = np.zeros((0, columns), np.float64)
        self._low = np.full((0, columns), np.inf, np.float64)
        self._high = np.full((0, columns), -np.inf, np.float64)
        self._seconds = np.full(columns, -np.inf)
        self._newest = np.zeros(0, _NEWEST)
        """What came last of each series."""
        self._known: tuple[tuple[str, ...], npt.NDArray[np.int64]] = (), np.zeros(0, np.int64)
        """The names that scalars came with last, and their rows: mostly those of the next ones."""

    def __len__(self) -> int:
        """Return how many series there are."""
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        """Iterate over their names, in the order in which they came."""
        return iter(self._rows)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a series of this name."""
        return name in self._rows

    @property
    def used(self) -> int:
        """How many buckets of each series hold something, at most."""
        return int(np.isfinite(self._seconds).sum())

    @property
    def cells(self) -> int:
        """How many buckets there is memory for."""
        return len(self._rows) * self._columns

    @property
    def front(self) -> Front | None:
        """How far the worker has come; None before the first scalar."""
        used = np.flatnonzero(np.isfinite(self._seconds))
        if self._first is None or not len(used):
            return None
        seconds = float(self._seconds[used].max())
        latest = used[self._seconds[used] >= seconds - LATEST_SECONDS]
        step, at = ((self._first + int(columns[-1])) * self.width for columns in (used, latest))
        return Front(step, at, seconds)

    def copy(self) -> "Board":
        """Return a copy, which another thread may have."""
        twin = copy(self)
        twin._rows = dict(self._rows)
        for attribute in (*_ROWS, "_seconds"):
            setattr(twin, attribute, getattr(self, attribute).copy())
        return twin

    def open(self, names: Collection[str]) -> None:
        """Have series of these names, of which there are none yet."""
        for name in names:
            self._rows[name] = len(self._rows)
        self._known = (), np.zeros(0, np.int64)
        self._newest = np.concatenate((self._newest, np.array([(-1, 0.0)] * len(names), _NEWEST)))
        for attribute in _ROWS:
            rows = getattr(self, attribute)
            empty = np.full((len(names), self._columns), _EMPTY.get(attribute, 0), rows.dtype)
            setattr(self, attribute, np.concatenate((rows, empty)))

    def rows_of(self, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
        """Return which rows series of these names have; -1 for one that is not open."""
        if names != self._known[0]:
            rows = [self._rows.get(name, -1) for name in names]
            self._known = names, np.array(rows, np.int64)
        return self._known[1]

    def newest(self) -> dict[str, tuple[int, float]]:
        """Return the step and the value that came last of each series, by name."""
        steps, values = self._newest["step"].tolist(), self._newest["value"].tolist()
        found = zip(self._rows, zip(steps, values, strict=True), strict=True)
        return {name: newest for name, newest in found if newest[0] >= 0}

    def add(
        self, names: Sequence[str], points: npt.NDArray[Any], seconds: npt.NDArray[np.float64]
    ) -> None:
        """Add scalars of series that are open: names without scalars need not be.

        Parameters
        ----------
        points : ndarray of shape (n,), dtype `POINT`
        seconds : ndarray of shape (n,), dtype float64
            When they were logged.
        """
        if not len(points):
            return
        rows = self.rows_of(tuple(names))[points["series"]]
        steps, values = points["step"].astype(np.int64), points["value"]
        self._make_room(int(steps.min()), int(steps.max()))
        assert self._first is not None
        columns = steps // self.width - self._first
        where = rows * self._columns + columns  # numpy adds up by one index far faster than by two
        np.add.at(self._count.reshape(-1), where, np.uint32(1))
        with np.errstate(invalid="ignore"):  # of infinities and NaN
            np.add.at(self._total.reshape(-1), where, values)
            np.minimum.at(self._low.reshape(-1), where, values)
            np.maximum.at(self._high.reshape(-1), where, values)
        np.maximum.at(self._seconds, columns, seconds)
        self._newest["step"][rows] = steps  # the last one stays where there are several
        self._newest["value"][rows] = values

    def narrow(self, columns_max: int) -> None:
        """Go on with fewer buckets of each series."""
        self._columns_max = columns_max
        while self._columns > columns_max:
            self._join(2)
            half = self._columns // 2
            if self._first is not None and np.isfinite(self._seconds[half:]).any():
                self._join(2)  # what began in the middle of the range still needs one more
            for attribute in _ROWS:
                setattr(self, attribute, getattr(self, attribute)[:, :half].copy())
            self._seconds = self._seconds[:half].copy()
            self._columns = half

    def curve(self, name: str) -> Curve:
        """Return what there is of a series."""
        row = self._rows[name]
        used = np.flatnonzero(self._count[row])
        count = self._count[row, used].astype(np.int64)
        first = 0 if self._first is None else self._first
        return Curve(
            self.width,
            (first + used) * self.width,
            self._seconds[used],
            self._total[row, used] / count,
            self._low[row, used],
            self._high[row, used],
            count,
        )

    def save(self, rank: int) -> tuple[SavedBoard, list[bytes]]:
        """Return a copy of it, as that of a worker with this rank, and of its arrays."""
        used = np.flatnonzero(np.isfinite(self._seconds))
        end = int(used[-1]) + 1 if len(used) else 0
        arrays = [self._seconds[:end].tobytes()]
        arrays += [getattr(self, name)[:, :end].tobytes() for name, _ in COLUMNS]
        return SavedBoard(rank, self.width, self._first or 0, tuple(self._rows), end), arrays

    @classmethod
    def restored(cls, saved: SavedBoard, arrays: memoryview, columns_max: int) -> "Board":
        """Return what was saved, or raise `InvalidMessageError` if it contradicts itself."""
        end, rows = saved.columns, len(saved.names)
        if end > columns_max or len(set(saved.names)) < rows:
            raise InvalidMessageError(
                f"{rows} series of {end} buckets, of at most {columns_max}, or a name twice"
            )
        if saved.width & (saved.width - 1):
            raise InvalidMessageError(f"a bucket of {saved.width} steps")
        if saved.first * saved.width > STEP_MAX:
            raise InvalidMessageError(f"bucket {saved.first} of {saved.width} steps each")
        seconds = array_of(arrays[: end * SECONDS.itemsize], SECONDS, "seconds of buckets")
        board = cls(columns_max)
        board.width = saved.width
        board.open(saved.names)
        if end:
            board._first = saved.first
            board._widen(end)
        is_used = np.isfinite(seconds)
        board._seconds[:end] = np.where(is_used, seconds, -np.inf)
        at = end * SECONDS.itemsize
        for name, dtype in COLUMNS:
            size = rows * end * dtype.itemsize
            values = array_of(arrays[at : at + size], dtype, "buckets").reshape(rows, end)
            getattr(board, name)[:, :end] = values
            at += size
        is_counted = (board._count[:, :end] > 0).any(axis=0)
        if (is_counted & ~is_used).any() or (seconds[is_used] < 0).any():
            raise InvalidMessageError("a bucket without a time")
        return board

    # Private.

    def _make_room(self, lowest: int, highest: int) -> None:
        """Have a bucket for each step of a range."""
        if self._first is None:
            self._first = lowest // self.width
        while True:
            first = min(self._first, lowest // self.width)
            used = np.flatnonzero(np.isfinite(self._seconds))
            last = self._first + int(used[-1]) if len(used) else first
            needed = max(last, highest // self.width) - first + 1
            if needed <= self._columns:
                break
            if needed <= self._columns_max:
                self._widen(needed)
            else:
                self._join(2 ** max((needed - 1).bit_length() - self._columns_max.bit_length(), 1))
        if shift := self._first - first:
            for attribute in _ROWS:
                rows = getattr(self, attribute)
                rows[:, shift:] = rows[:, :-shift].copy()
                rows[:, :shift] = _EMPTY.get(attribute, 0)
            self._seconds[shift:] = self._seconds[:-shift].copy()
            self._seconds[:shift] = -np.inf
            self._first = first

    def _widen(self, needed: int) -> None:
        """Have at least so many buckets of each series, and a power of two of them."""
        columns = max(2 ** (needed - 1).bit_length(), self._columns)
        more = columns - self._columns
        for attribute in _ROWS:
            rows = getattr(self, attribute)
            empty = np.full((len(rows), more), _EMPTY.get(attribute, 0), rows.dtype)
            setattr(self, attribute, np.concatenate((rows, empty), axis=1))
        self._seconds = np.concatenate((self._seconds, np.full(more, -np.inf)))
        self._columns = columns

    def _join(self, factor: int) -> None:
        """Make one bucket of so many neighbours, a power of two."""
        first = 0 if self._first is None else self._first
        into = (first + np.arange(self._columns)) // factor - first // factor
        merges: tuple[tuple[str, np.ufunc], ...] = (
            ("_count", np.add), ("_total", np.add), ("_low", np.minimum), ("_high", np.maximum),
        )  # fmt: skip
        with np.errstate(invalid="ignore"):  # of infinities
            for attribute, merge in merges:
                rows = getattr(self, attribute)
                merged = np.full_like(rows, _EMPTY.get(attribute, 0))
                merge.at(merged, np.ix_(np.arange(len(rows)), into), rows)
                setattr(self, attribute, merged)
        seconds = np.full_like(self._seconds, -np.inf)
        np.maximum.at(seconds, into, self._seconds)
        self._seconds = seconds
        self.width *= factor
        self._first = None if self._first is None else first // factor


_NEWEST = np.dtype([("step", "i8"), ("value", "f8")])

_ROWS = "_count", "_total", "_low", "_high"
"""What there is of each bucket."""

_EMPTY = {"_low": np.inf, "_high": -np.inf}
"""What is in an empty bucket, if not 0."""
