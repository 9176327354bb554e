"""`Board`: what one worker has logged, its series side by side, each in buckets of steps.

A bucket has how many scalars fell into it, their sum, the lowest and the highest, and when the last
one was logged. When the steps of a series no longer fit, two neighbours become one: so what is old
is as fine as what is new, and a spike stays visible, whatever the length of a run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire_protocol.messages.logged.scalars import STEP_MAX

COUNT, TOTAL, LOW, HIGH, SECONDS = range(5)
"""What there is of a bucket: rows of an array of float64."""

EMPTY: Final = np.array([0.0, 0.0, np.inf, -np.inf, -np.inf])

BUCKET_BYTES: Final = EMPTY.nbytes

Cells = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


def empty_cells(*shape: int) -> Cells:
    """Return buckets that nothing fell into, an array of shape (5, ...)."""
    cells = np.empty((len(EMPTY), *shape))
    cells[:] = EMPTY.reshape(-1, *(1 for _ in shape))
    return cells


def joined(numbers: Numbers, cells: Cells) -> tuple[Numbers, Cells]:
    """Make one bucket of those that have the same number; the numbers rise."""
    if not len(numbers):
        return numbers, cells
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    with np.errstate(invalid="ignore"):  # of infinities and NaN
        parts = (
            np.add.reduceat(cells[:LOW], starts, axis=-1),
            np.minimum.reduceat(cells[LOW:HIGH], starts, axis=-1),
            np.maximum.reduceat(cells[HIGH:], starts, axis=-1),
        )
    return numbers[starts], np.concatenate(parts)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The buckets of a series that hold something, in order."""

    steps: int
    """For how many steps each is, a power of two."""
    numbers: Numbers
    """Of the buckets: their first steps, divided by `steps`."""
    cells: Cells
    """The buckets, of shape (5, n)."""

    @property
    def step(self) -> Numbers:
        """The first step of each bucket."""
        step: Numbers = self.numbers * self.steps
        return step

    @property
    def count(self) -> Numbers:
        """How many scalars fell into each."""
        return self._row(COUNT).astype(np.int64)

    @property
    def mean(self) -> Cells:
        """Their mean."""
        with np.errstate(invalid="ignore"):  # of infinities
            return self._row(TOTAL) / self._row(COUNT)

    @property
    def low(self) -> Cells:
        """The lowest; NaN if one is."""
        return self._row(LOW)

    @property
    def high(self) -> Cells:
        """The highest; NaN if one is."""
        return self._row(HIGH)

    @property
    def seconds(self) -> Cells:
        """When the last one was logged."""
        return self._row(SECONDS)

    def coarser(self, steps: int) -> "Curve":
        """Return it with buckets of more steps, a power of two."""
        if steps <= self.steps:
            return self
        return Curve(steps, *joined(self.numbers * self.steps // steps, self.cells))

    def _row(self, which: int) -> Cells:
        row: Cells = self.cells[which]
        return row


class Board:
    """The series of one worker.

    Parameters
    ----------
    columns : int
        Most buckets of a series.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: dict[str, int] = {}
        self._cells = empty_cells(0, columns)
        self._width = np.zeros(0, np.int64)
        """By row: steps in a bucket, a power of two."""
        self._first = np.zeros(0, np.int64)
        """The number of the first bucket: its first step, divided by the width."""
        self._newest = np.zeros((2, 0))
        """The step and the value that came last."""

    @property
    def nbytes(self) -> int:
        """The memory of its buckets."""
        return self._cells.nbytes

    def __len__(self) -> int:
        """Return how many series there are."""
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        """Iterate over their names, in the order in which they came."""
        return iter(self._rows)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a series of this name."""
        return name in self._rows

    def open(self, names: Sequence[str]) -> None:
        """Have series of these names, of which there are none yet."""
        for name in names:
            self._rows[name] = len(self._rows)
        more = len(names)
        self._cells = np.concatenate((self._cells, empty_cells(more, self._columns)), axis=1)
        self._width = np.concatenate((self._width, np.ones(more, np.int64)))
        self._first = np.concatenate((self._first, np.zeros(more, np.int64)))
        self._newest = np.concatenate((self._newest, np.zeros((2, more))), axis=1)

    def add(
        self, names: Sequence[str], points: npt.NDArray[Any], seconds: npt.NDArray[np.float64]
    ) -> None:
        """Add scalars of series that are open.

        Parameters
        ----------
        names : sequence of str
            Those that scalars refer to; others among them need not be open.
        points : ndarray of shape (n,), dtype `POINT`
        seconds : ndarray of shape (n,), dtype float64
            When they were logged.
        """
        if not len(points):
            return
        rows = np.array([self._rows.get(name, -1) for name in names])[points["series"]]
        steps, values = points["step"].astype(np.int64), points["value"].astype(np.float64)
        self._make_room(rows, steps)
        numbers = steps // self._width[rows]
        where = rows * self._columns + numbers - self._first[rows]
        flat = self._cells.reshape(len(EMPTY), -1)  # numpy is far faster with one index
        np.add.at(flat[COUNT], where, 1.0)
        with np.errstate(invalid="ignore"):  # of infinities and NaN
            np.add.at(flat[TOTAL], where, values)
            np.minimum.at(flat[LOW], where, values)
            np.maximum.at(flat[HIGH], where, values)
        np.maximum.at(flat[SECONDS], where, seconds)
        self._newest[:, rows] = steps, values  # of several the last one stays

    def newest(self) -> dict[str, tuple[int, float]]:
        """Return the step and the value that came last of each series, by name."""
        steps, values = self._newest.tolist()
        return {name: (int(steps[row]), values[row]) for name, row in self._rows.items()}

    def curve(self, name: str) -> Curve:
        """Return what there is of a series."""
        return self._curve(self._rows[name])

    def put(self, name: str, curve: Curve) -> None:
        """Let an open series have what there is of another one."""
        row = self._rows[name]
        self._store(row, curve)
        if len(curve.numbers):
            self._newest[:, row] = curve.step[-1], curve.mean[-1]

    def narrow(self, columns: int) -> None:
        """Go on with fewer buckets of each series."""
        curves = [self.curve(name) for name in self._rows]
        self._columns = columns
        self._cells = empty_cells(len(curves), columns)
        for row, curve in enumerate(curves):
            self._store(row, curve)

    # Private.

    def _curve(self, row: int) -> Curve:
        used = np.flatnonzero(self._cells[COUNT, row])
        return Curve(int(self._width[row]), self._first[row] + used, self._cells[:, row, used])

    def _make_room(self, rows: Numbers, steps: Numbers) -> None:
        """Have a bucket for each of these steps."""
        touched, into = np.unique(rows, return_inverse=True)
        lowest = np.full(len(touched), STEP_MAX)
        highest = np.zeros(len(touched), np.int64)
        np.minimum.at(lowest, into, steps)
        np.maximum.at(highest, into, steps)
        width, first = self._width[touched], self._first[touched]
        fits = (lowest // width >= first) & (highest // width - first < self._columns)
        for at in np.flatnonzero(~fits):
            row = int(touched[at])
            self._store(row, self._curve(row), (int(lowest[at]), int(highest[at])))

    def _store(self, row: int, curve: Curve, more: tuple[int, ...] = ()) -> None:
        """Let a series have the buckets of a curve, and room for more steps."""
        steps = [*curve.step[[0, -1]].tolist(), *more] if len(curve.numbers) else more
        width = curve.steps
        while steps and max(steps) // width - min(steps) // width >= self._columns:
            width *= 2
        curve = curve.coarser(width)
        first = min(steps, default=0) // width
        self._cells[:, row] = empty_cells(self._columns)
        self._cells[:, row, curve.numbers - first] = curve.cells
        self._width[row], self._first[row] = width, first
