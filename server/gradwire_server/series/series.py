"""`Series`: what the workers of a run have logged.

Its memory has a bound: with more series each has fewer buckets, and a worker that sends more than
its share of scalars has the rest dropped, and counted.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.logged.scalars import COUNT_MAX, POINTS_MAX, STEP_MAX, Logged
from gradwire_protocol.messages.logged.scalars import SERIES_MAX as SERIES_OF_WORKER_MAX
from gradwire_server.series.board import COUNT, TOTAL, Board, Curve, joined
from gradwire_server.series.saved import (
    CELLS_MAX,
    COLUMNS_MAX,
    SAVED_MAX,
    SERIES_MAX,
    SavedSeries,
)
from gradwire_server.series.senders import Senders

POINTS_PER_SECOND: Final = POINTS_MAX
"""Most scalars that are taken from a worker, on average; a worker sends no more by itself."""

FIRST_AGE_SECONDS_MAX: Final = 600.0
"""How long before it came the first scalar of a run was logged, at most: time begins there."""


class Shown(NamedTuple):
    """A curve, as it is shown."""

    series: str
    rank: int | None
    """None for the mean of all workers."""
    curve: Curve


class Series:
    """The series of a run, by the rank of a worker and by name."""

    def __init__(self) -> None:
        self.taken = 0
        """How many scalars were taken."""
        self.dropped = 0
        """How many were not, here or by workers."""
        self._boards: dict[int, Board] = {}
        self._senders = Senders(POINTS_PER_SECOND)
        self._columns = COLUMNS_MAX
        """Most buckets of a series."""
        self._began: float | None = None
        self._seconds = 0.0
        """How long after the first scalar the last one came. Where this was saved, time goes on
        from there."""

    def add(self, rank: int, worker: bytes, logged: Logged, now: float) -> None:
        """Take what a worker has logged, unless it was here before.

        Raises `InvalidMessageError` if it contradicts itself.

        Parameters
        ----------
        worker : bytes
            Names the worker: another one may have its rank later.
        """
        points = logged.array
        if not self._senders.is_new(rank, worker, logged.number, now):
            return
        self.dropped = min(self.dropped + logged.dropped, COUNT_MAX)  # a worker may say anything
        if not self._senders.takes(rank, len(points), now):
            self.dropped += len(points)
            return
        board = self._boards.get(rank)
        if board is None:
            board = self._boards[rank] = Board(self._columns)
        if new := [name for name in logged.names if name not in board]:
            self._open(board, new)
        is_open = np.array([name in board for name in logged.names], bool)
        has_room = is_open[points["series"]]
        self.dropped += len(points) - int(has_room.sum())
        points = points[has_room]
        ages = 1e-3 * points["age"]
        if self._began is None:
            age = min(float(ages.max(initial=0.0)), FIRST_AGE_SECONDS_MAX)
            self._began = now - age - self._seconds
        self._seconds = now - self._began
        board.add(logged.names, points, np.maximum(now - self._began - ages, 0.0))
        self.taken += len(points)

    @property
    def began(self) -> float | None:
        """When the first scalar was logged, in the master's time: seconds count from there."""
        return self._began

    @property
    def nbytes(self) -> int:
        """The memory of all buckets."""
        return sum(board.nbytes for board in self._boards.values())

    @property
    def ranks(self) -> list[int]:
        """The ranks of workers that have logged anything, in order."""
        return sorted(self._boards)

    def newest(self, rank: int) -> Mapping[str, tuple[int, float]]:
        """Return the step and the value that came last of a worker, by name."""
        board = self._boards.get(rank)
        return {} if board is None else board.newest()

    def names(self) -> Sequence[str]:
        """Return the names of all series, in order."""
        return sorted({name for board in self._boards.values() for name in board})

    def curves(self, points_max: int = CELLS_MAX) -> Iterator[Shown]:
        """Yield, by name: the mean of all workers, then what each has logged.

        Parameters
        ----------
        points_max : int
            About how many buckets to yield at most: where there are more, neighbours become one.
        """
        curves = 2 * sum(map(len, self._boards.values()))
        for name in self.names():
            yield from self.curves_of(name, points_max=max(points_max // curves, 1))

    def curves_of(
        self, name: str, *, points_max: int = COLUMNS_MAX, ranks: Collection[int] | None = None
    ) -> Iterator[Shown]:
        """Yield the mean of all workers of a series, then what each has logged, or some have.

        It yields nothing where there is no such series.

        Parameters
        ----------
        points_max : int
            How many buckets a curve has at most.
        """
        curves = {r: b.curve(name) for r, b in sorted(self._boards.items()) if name in b}
        if not curves:
            return
        steps = _steps_for(list(curves.values()), points_max)
        yield Shown(name, None, _mean([curve.coarser(steps) for curve in curves.values()]))
        for rank, curve in curves.items():
            if ranks is None or rank in ranks:
                yield Shown(name, rank, curve.coarser(_steps_for([curve], points_max)))

    def save(self) -> SavedSeries:
        """Return it as what a checkpoint has: for 200 workers, this takes tenths of a second."""
        found = [(r, name, b.curve(name)) for r, b in sorted(self._boards.items()) for name in b]
        used = sum(len(curve.numbers) for _, _, curve in found)
        factor = 2 ** (max(used - 1, 0) // (SAVED_MAX - len(found))).bit_length()
        curves = [curve.coarser(factor * curve.steps) for _, _, curve in found]
        buckets = [np.concatenate((curve.numbers[None], curve.cells)) for curve in curves]
        return SavedSeries(
            seconds=self._seconds,
            taken=self.taken,
            dropped=self.dropped,
            ranks=tuple(rank for rank, _, _ in found),
            names=tuple(name for _, name, _ in found),
            widths=tuple(curve.steps for curve in curves),
            counts=tuple(len(curve.numbers) for curve in curves),
            buckets=np.concatenate(buckets or [np.zeros((6, 0))], axis=1).tobytes(),
        )

    @classmethod
    def restored(cls, saved: SavedSeries) -> "Series":
        """Return what was saved.

        Its time goes on with what is logged next.

        Raises
        ------
        InvalidMessageError
            If it is damaged, or contradicts itself.
        """
        series = cls()
        try:
            series._restore(saved)
        except (ValueError, KeyError) as error:
            raise InvalidMessageError(f"series: {error}") from None
        return series

    # Private.

    def _restore(self, saved: SavedSeries) -> None:
        if len(set(zip(saved.ranks, saved.names, strict=False))) < len(saved.names):
            raise ValueError("a name for a second time")
        heads = list(zip(saved.ranks, saved.names, saved.widths, saved.counts, strict=True))
        for rank in sorted(set(saved.ranks)):
            board = self._boards[rank] = Board(self._columns)
            self._open(board, [name for of, name, _, _ in heads if of == rank])
        buckets = np.frombuffer(saved.buckets, "<f8").reshape(6, sum(saved.counts))
        end = 0
        for rank, name, width, count in heads:
            start, end = end, end + count
            numbers, cells = buckets[0, start:end], buckets[1:, start:end]
            is_sound = (numbers >= 0) & (numbers * width <= STEP_MAX) & (cells[COUNT] >= 1)
            if not is_sound.all() or (np.diff(numbers) < 1).any() or width & (width - 1):
                raise ValueError(f"series {name!r} of rank {rank} has a bucket that cannot be")
            self._boards[rank].put(name, Curve(width, numbers.astype(np.int64), cells))
        self.taken, self.dropped = saved.taken, saved.dropped
        self._seconds = saved.seconds

    def _open(self, board: Board, names: list[str]) -> None:
        """Have series of these names, as far as there is room for them."""
        there = sum(map(len, self._boards.values()))
        room = min(SERIES_MAX - there, SERIES_OF_WORKER_MAX - len(board))
        names = names[: max(room, 0)]
        if not names:
            return
        while (there + len(names)) * self._columns > CELLS_MAX:
            self._columns //= 2
            for each in self._boards.values():
                each.narrow(self._columns)
        board.open(names)


def _steps_for(curves: Sequence[Curve], points_max: int) -> int:
    """Return for how many steps buckets have to be, so that curves have at most so many of them."""
    steps = max(curve.steps for curve in curves)
    numbers = np.unique(np.concatenate([each.numbers * each.steps // steps for each in curves]))
    while len(numbers) > points_max:
        steps *= 2
        numbers = np.unique(numbers // 2)
    return steps


def _mean(curves: Sequence[Curve]) -> Curve:
    """Return the mean of several workers, with buckets of as many steps: each counts alike."""
    numbers = np.concatenate([curve.numbers for curve in curves])
    cells = np.concatenate([curve.cells for curve in curves], axis=1)
    with np.errstate(invalid="ignore"):  # of infinities
        cells[TOTAL] /= cells[COUNT]
    order = np.argsort(numbers, kind="stable")
    found, mean = joined(numbers[order], cells[:, order])
    workers = np.unique(numbers, return_counts=True)[1]
    mean[TOTAL] *= mean[COUNT] / workers
    return Curve(curves[0].steps, found, mean)
