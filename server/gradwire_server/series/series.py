"""`Series`: what the workers of a run have logged.

Its memory has a bound: with more series each has fewer buckets, and a worker that sends more than
its share of scalars has the rest dropped, and counted.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.operating.histograms import Histograms
from gradwire_protocol.messages.operating.scalars import COUNT_MAX, POINTS_MAX, Logged
from gradwire_protocol.messages.operating.scalars import SERIES_MAX as SERIES_OF_WORKER_MAX
from gradwire_server.series.board import Board, Curve, Front
from gradwire_server.series.histograms import LayerHistograms
from gradwire_server.series.saved import (
    BOARDS_MAX,
    SECONDS_MAX,
    SavedHead,
    SavedSeries,
    parse_saved,
)
from gradwire_server.series.senders import Senders

CELLS_MAX: Final = 2**20
"""Most buckets of a run: 29 MB."""

COLUMNS_MAX: Final = 2**12
COLUMNS_MIN: Final = 2**5
"""Most and fewest buckets of a series."""

SERIES_MAX: Final = CELLS_MAX // COLUMNS_MIN
"""Most series of a run: 200 workers with 160 each."""

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
        self._names: list[str] | None = None
        """Of all series, in order; None while they are not known: viewers ask every second."""
        self._senders = Senders(POINTS_PER_SECOND)
        self._columns_max = COLUMNS_MAX
        """Most buckets of a series."""
        self._began: float | None = None
        """When the first of all this was logged."""
        self._seconds_before = 0.0
        """For how long scalars had been logged when this was saved; at the first one since then,
        time goes on."""
        self.histograms = LayerHistograms()

    def __bool__(self) -> bool:
        """Return whether anything was logged."""
        return bool(self.taken or self.dropped or self.histograms.taken or self.histograms.dropped)

    def add(
        self, rank: int, worker: bytes, logged: Logged, now: float, *, is_limited: bool = True
    ) -> bool:
        """Take what a worker has logged, unless it was here before; return whether it did.

        Raises `InvalidMessageError` if it contradicts itself.

        Parameters
        ----------
        worker : bytes
            Names the worker: another one may have its rank later.
        is_limited : bool
            Whether a worker may send too fast.
        """
        points = logged.array
        if not self._senders.is_new(rank, worker, logged.number, now):
            return False
        self.dropped = min(self.dropped + logged.dropped, COUNT_MAX)  # a worker may say anything
        if is_limited and not self._senders.takes(rank, worker, len(points), now):
            self.dropped += len(points)
            return False
        age = min(1e-3 * float(points["age"].max(initial=0)), FIRST_AGE_SECONDS_MAX)
        began = self._began_before(now - age)
        board = self._boards.get(rank)
        if board is None:
            board = self._boards[rank] = Board(self._columns_max)
        if board.rows_of(logged.names).min(initial=0) < 0:
            self._open(board, [name for name in logged.names if name not in board])
            has_room = board.rows_of(logged.names)[points["series"]] >= 0
            self.dropped += len(points) - int(has_room.sum())
            points = points[has_room]
        board.add(logged.names, points, np.maximum(now - began - 1e-3 * points["age"], 0.0))
        self.taken += len(points)
        return True

    def add_histograms(
        self,
        rank: int,
        worker: bytes,
        message: Histograms,
        now: float,
        present: Collection[int] | None,
    ) -> bool:
        """Take histograms of a worker, as `LayerHistograms.add` does."""
        at = now - 1e-3 * message.age
        began = self._began_before(at)
        seconds = max(at - began, 0.0)
        return self.histograms.add(rank, worker, message, seconds, present=present, now=now)

    @property
    def began(self) -> float | None:
        """When the first scalar was logged, in the master's time: seconds count from there."""
        return self._began

    def newest(self, rank: int) -> Mapping[str, tuple[int, float]]:
        """Return the step and the value that came last of a worker, by name."""
        board = self._boards.get(rank)
        return {} if board is None else board.newest()

    @property
    def ranks(self) -> list[int]:
        """The ranks of workers that have logged anything, in order."""
        return sorted(self._boards)

    def names(self) -> Sequence[str]:
        """Return the names of all series, in order."""
        if self._names is None:
            self._names = sorted({name for board in self._boards.values() for name in board})
        return self._names

    def curves(self, points_max: int = CELLS_MAX) -> Iterator[Shown | None]:
        """Yield, by name: the mean of all workers, then what each has logged.

        It yields None where nothing is ready yet, so that the caller may do something else.

        Parameters
        ----------
        points_max : int
            About how many buckets to yield at most: where there are more, neighbours become one.
        """
        points = 2 * sum(len(board) * board.used for board in self._boards.values())
        factor = 2 ** (max(points - 1, 0) // points_max).bit_length()
        for name in self.names():
            yield from self._curves(name, factor)

    def curves_of(
        self, name: str, *, points_max: int, ranks: Collection[int]
    ) -> Iterator[Shown | None]:
        """Yield the mean of all workers of a series, then what each of some has logged.

        It yields None where nothing is ready yet, and nothing at all where there is no such series.

        Parameters
        ----------
        points_max : int
            About how many buckets a curve has at most.
        """
        used = max((b.used for b in self._boards.values() if name in b), default=0)
        if used:
            yield from self._curves(name, 2 ** (max(used - 1, 0) // points_max).bit_length(), ranks)

    def save(self, now: float) -> SavedSeries:
        """Return a copy of it, which another thread may write."""
        boards = sorted(self._boards.items())[:BOARDS_MAX]
        saved = [board.save(rank) for rank, board in boards]
        head = SavedHead(
            min(max(self.seconds(now), 0.0), SECONDS_MAX),
            self.taken,
            self.dropped,
            self._columns_max,
            tuple(board for board, _ in saved),
            self._senders.save(),
            self.histograms.save(),
        )
        return SavedSeries(head, [array for _, arrays in saved for array in arrays])

    @classmethod
    def restored(cls, data: bytes | bytearray | memoryview, now: float | None = None) -> "Series":
        """Return what was saved, from its bytes; an empty series of none.

        A message of a worker that was here is not taken again.

        Parameters
        ----------
        now : float, optional
            When it was saved; by default its time goes on with what is logged next.

        Raises
        ------
        InvalidMessageError
            If it is damaged, or contradicts itself.
        """
        series = cls()
        if not len(data):
            return series
        saved, arrays = parse_saved(memoryview(data))
        columns_max = saved.columns_max
        if not COLUMNS_MIN <= columns_max <= COLUMNS_MAX or columns_max & (columns_max - 1):
            raise InvalidMessageError(f"series of {columns_max} buckets")
        if sum(len(each.names) for each in saved.boards) * columns_max > CELLS_MAX:
            raise InvalidMessageError(f"more than {CELLS_MAX // columns_max} series")
        for each in saved.boards:
            if each.rank in series._boards:
                raise InvalidMessageError(f"the series of rank {each.rank} for a second time")
            series._boards[each.rank] = Board.restored(each, arrays[: each.nbytes], columns_max)
            arrays = arrays[each.nbytes :]
        series.taken, series.dropped = saved.taken, saved.dropped
        series._columns_max, series._seconds_before = columns_max, saved.seconds
        if now is not None and series:
            series._began = now - saved.seconds
        series._senders.restore(saved.senders)
        series.histograms = LayerHistograms.restored(saved.histograms)
        return series

    def fronts(self) -> dict[int, Front]:
        """Return how far each worker has come, by its rank."""
        fronts = {rank: board.front for rank, board in self._boards.items()}
        return {rank: front for rank, front in fronts.items() if front is not None}

    def seconds(self, now: float) -> float:
        """Return how long ago the first scalar was logged."""
        return self._seconds_before if self._began is None else now - self._began

    def copy(self) -> "Series":
        """Return a copy to read, which another thread may have: some milliseconds at most."""
        twin = copy(self)
        twin._boards = {rank: board.copy() for rank, board in self._boards.items()}
        twin._senders = Senders(POINTS_PER_SECOND)
        twin.histograms = LayerHistograms()
        return twin

    # Private.

    def _curves(
        self, name: str, factor: int, ranks: Collection[int] | None = None
    ) -> Iterator[Shown | None]:
        boards = [(r, b) for r, b in sorted(self._boards.items()) if name in b]
        mean = _MeanOfWorkers(factor * max(board.width for _, board in boards))
        for _, board in boards:
            mean.add(board.curve(name))
            yield None
        yield Shown(name, None, mean.curve())
        for rank, board in boards:
            if ranks is None or rank in ranks:
                yield Shown(name, rank, board.curve(name).coarser(factor * board.width))

    def _open(self, board: Board, names: list[str]) -> None:
        """Have series of these names, as far as there is room for them."""
        there = sum(map(len, self._boards.values()))
        names = names[: max(min(SERIES_MAX - there, SERIES_OF_WORKER_MAX - len(board)), 0)]
        if not names:
            return
        while (there + len(names)) * self._columns_max > CELLS_MAX:
            self._columns_max //= 2
            for each in self._boards.values():
                each.narrow(self._columns_max)
        board.open(names)
        self._names = None

    def _began_before(self, at: float) -> float:
        """Return when the first of all this was logged, if that was before this moment."""
        if self._began is None:
            self._began = at - self._seconds_before
        return self._began


class _MeanOfWorkers:
    """The mean of several workers, in buckets of so many steps: each worker counts alike.

    It has memory for the buckets that hold something. Steps are what workers say: one may count
    from 0 while another one counts the seconds since 1970.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._numbers = np.zeros(0, np.int64)
        """Of the buckets: their first steps, divided by `steps`."""
        self._sums = _sums_of(0)

    def add(self, curve: Curve) -> None:
        """Add one worker's."""
        curve = curve.coarser(self._steps)
        numbers = curve.step // self._steps
        both = np.union1d(self._numbers, numbers)
        if len(both) > len(self._numbers):
            sums = _sums_of(len(both))
            sums[np.searchsorted(both, self._numbers)] = self._sums
            self._numbers, self._sums = both, sums
        at, sums = np.searchsorted(both, numbers), self._sums
        sums["workers"][at] += 1
        sums["count"][at] += curve.count
        with np.errstate(invalid="ignore"):  # of infinities
            sums["total"][at] += curve.mean
            sums["seconds"][at] = np.maximum(sums["seconds"][at], curve.seconds)
            sums["low"][at] = np.minimum(sums["low"][at], curve.low)
            sums["high"][at] = np.maximum(sums["high"][at], curve.high)

    def curve(self) -> Curve:
        """Return the mean."""
        sums = self._sums
        with np.errstate(invalid="ignore"):
            mean = sums["total"] / sums["workers"]
        return Curve(
            self._steps, self._numbers * self._steps, sums["seconds"].copy(), mean,
            sums["low"].copy(), sums["high"].copy(), sums["count"].copy(),
        )  # fmt: skip


_SUMS: Final = np.dtype(
    [("workers", "i8"), ("count", "i8"), ("total", "f8"), ("seconds", "f8"), ("low", "f8"),
     ("high", "f8")]
)  # fmt: skip


def _sums_of(buckets: int) -> npt.NDArray[Any]:
    """Return sums of nothing."""
    sums = np.zeros(buckets, _SUMS)
    sums["seconds"], sums["low"], sums["high"] = -np.inf, np.inf, -np.inf
    return sums
