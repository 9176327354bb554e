"""`LayerHistograms`: how the parameters of a run are distributed, and how that moves.

Replicas are the same everywhere, so one worker's histograms say it for the run: those of the lowest
rank that sends any. What workers with higher ranks send is dropped and counted as long as that one
takes part; once it is gone, the next one that sends any goes on. What is kept: the newest of these
messages, and one of each so many before it. When there are too many, every second one is dropped,
so that what is old is as fine as what is new.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.operating.histograms import (
    QUANTITIES,
    Histograms,
    checked_histograms,
)
from gradwire_protocol.messages.operating.scalars import COUNT_MAX
from gradwire_server.series.saved import SavedFrame, SavedHistograms
from gradwire_server.series.senders import Senders

FRAMES_MAX: Final = 64
"""Most messages that are kept besides the newest. Each is 106 KB at most (see
`Histograms.BYTES_MAX`): 7 MB for a run, and 2 MB where names are 40 characters, as all messages of
a model have the same ones."""

PER_SECOND: Final = 1.0
"""Most messages that are taken from a worker, on average; it sends no more by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The histograms of one step."""

    step: int
    seconds: float
    """When they were made, as seconds of the run's series."""
    rank: int
    tensors: int
    """How many the model has; those that are not here are smaller."""
    names: tuple[str, ...]
    """Of the tensors that are here."""
    histograms: npt.NDArray[np.void]
    """Shape (n,), dtype `HISTOGRAM`."""


class LayerHistograms:
    """The histograms of a run."""

    def __init__(self) -> None:
        self.taken = 0
        """How many messages were taken."""
        self.dropped = 0
        """How many times histograms were due and are not here: they came too fast, or from a worker
        with a higher rank than another one that sends some."""
        self.newest: Frame | None = None
        self._kept: list[Frame] = []
        self._stride = 1
        """One message of so many is kept."""
        self._senders = Senders(PER_SECOND)

    def add(
        self,
        rank: int,
        worker: bytes,
        message: Histograms,
        seconds: float,
        *,
        present: Collection[int] | None,
        now: float,
    ) -> bool:
        """Take histograms of a worker, unless they were here before; return whether it did.

        Raises `InvalidMessageError` if they contradict themselves.

        Parameters
        ----------
        worker : bytes
            Names the worker: another one may have its rank later.
        seconds : float
            When they were made.
        present : collection of int or None
            The ranks of all workers that take part now; None to take it whosesoever it is, and
            however fast they come.
        """
        array = message.array
        if not self._senders.is_new(rank, worker, message.number, now):
            return False
        self.dropped = min(self.dropped + message.dropped, COUNT_MAX)  # a worker may say anything
        newest = self.newest
        if present is not None:
            is_of_others = newest is not None and rank > newest.rank and newest.rank in present
            if is_of_others or not self._senders.takes(rank, worker, 1.0, now):
                self.dropped += 1
                return False
        names = message.names
        if newest is not None and newest.names == names:
            names = newest.names  # the same objects, so that a name takes memory once
        self._keep(Frame(message.step, seconds, rank, message.tensors, names, array.copy()))
        return True

    def frames(self) -> list[Frame]:
        """Return all that is kept, by step; the newest is the last that has come."""
        kept = [frame for frame in self._kept if frame is not self.newest]
        kept.sort(key=lambda frame: frame.step)
        return kept if self.newest is None else [*kept, self.newest]

    def shown(
        self, *, history: bool = True, layer: str | None = None
    ) -> Iterator[dict[str, Any] | None]:
        """Yield histograms as values that JSON has: by tensor, by quantity, by step.

        It yields None where nothing is ready yet, so that the caller may do something else.

        Parameters
        ----------
        history : bool
            Whether to yield all that is kept, and not only the newest.
        layer : str, optional
            The tensor to yield them of; by default of all.
        """
        if self.newest is None:
            return
        frames = self.frames() if history else [self.newest]
        rows = []
        for frame in frames:
            found = frame.histograms[["layer", "quantity"]].tolist()
            rows.append({(frame.names[n], q): at for at, (n, q) in enumerate(found)})
            yield None
        # Those of the newest first: all workers of a run have the same tensors.
        names = dict.fromkeys(name for frame in reversed(frames) for name in frame.names)
        for name in names if layer is None else [layer]:
            for quantity, called in enumerate(QUANTITIES):
                for frame, at in zip(frames, rows, strict=True):
                    if (name, quantity) in at:
                        yield _shown(name, called, frame, at[name, quantity])

    def save(self) -> SavedHistograms:
        """Return a copy of it."""
        frames, names = [], None
        keeps_newest = any(frame is self.newest for frame in self._kept)
        kept = [frame for frame in self._kept if frame is not self.newest]
        for frame in kept if self.newest is None else [*kept, self.newest]:
            of = None if frame.names == names else frame.names
            names = frame.names
            frames.append(
                SavedFrame(
                    frame.step,
                    frame.seconds,
                    frame.rank,
                    frame.tensors,
                    of,
                    frame.histograms.tobytes(),
                )
            )
        return SavedHistograms(
            self.taken, self.dropped, self._stride, tuple(frames), keeps_newest,
            self._senders.save(),
        )  # fmt: skip

    @classmethod
    def restored(cls, saved: SavedHistograms) -> "LayerHistograms":
        """Return what was saved, or raise `InvalidMessageError` if it contradicts itself."""
        restored = cls()
        restored.taken, restored.dropped = saved.taken, saved.dropped
        restored._stride = saved.stride
        restored._senders.restore(saved.senders)
        names: tuple[str, ...] = ()
        frames = []
        for each in saved.frames:
            names = names if each.names is None else each.names
            array = checked_histograms(names, each.histograms)
            frames.append(Frame(each.step, each.seconds, each.rank, each.tensors, names, array))
        if frames:
            restored.newest = frames[-1]
            restored._kept = frames if saved.keeps_newest else frames[:-1]
        if len(restored._kept) > FRAMES_MAX:
            raise InvalidMessageError(f"histograms of {len(frames)} steps")
        return restored

    # Private.

    def _keep(self, frame: Frame) -> None:
        self.newest = frame
        if self.taken % self._stride == 0:
            self._kept.append(frame)
        self.taken += 1
        if len(self._kept) > FRAMES_MAX:
            self._kept = self._kept[::2]
            self._stride *= 2


def _shown(name: str, quantity: str, frame: Frame, at: int) -> dict[str, Any]:
    found = frame.histograms[at]
    numbers = ("elements", "nan", "infinite", "lowest", "highest", "mean", "deviation")
    return {
        "layer": name,
        "quantity": quantity,
        "step": frame.step,
        "seconds": round(frame.seconds, 3),
        "rank": frame.rank,
        **{number: found[number].item() for number in numbers},
        "bins": found["bins"].tolist(),
    }
