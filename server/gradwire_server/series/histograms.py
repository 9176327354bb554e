"""`LayerHistograms`: how the parameters of a run are distributed, as its workers have said last.

The newest message is kept, of the worker with the lowest rank that sends any: all of them train
nearly the same. Others' are counted, and dropped as long as that one takes part.
"""

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from gradwire_protocol.messages.logged.histograms import HISTOGRAM, NUMBERS, QUANTITIES, Histograms
from gradwire_protocol.messages.logged.scalars import COUNT_MAX
from gradwire_server.series.senders import Senders

PER_SECOND: Final = 1.0
"""Most messages that are taken from a worker, on average; it sends no more by itself."""


class LayerHistograms:
    """The histograms of a run, which take 95 KB at most."""

    def __init__(self) -> None:
        self.taken = 0
        """How many messages were taken."""
        self.dropped = 0
        """How many were not, here or by workers."""
        self.rank: int | None = None
        """Of the worker that has sent what is kept; None where there is nothing."""
        self.step = 0
        self.names: tuple[str, ...] = ()
        self._array = np.zeros(0, HISTOGRAM)
        self._senders = Senders(PER_SECOND)

    def add(
        self, rank: int, worker: bytes, message: Histograms, present: Collection[int], now: float
    ) -> None:
        """Take histograms of a worker, unless they were here before.

        Raises `InvalidMessageError` if they contradict themselves.

        Parameters
        ----------
        worker : bytes
            Names the worker: another one may have its rank later.
        present : collection of int
            The ranks of all workers that take part now.
        """
        array = message.array
        if not self._senders.is_new(rank, worker, message.number, now):
            return
        self.dropped = min(self.dropped + message.dropped, COUNT_MAX)  # a worker may say anything
        is_higher = self.rank is not None and rank > self.rank and self.rank in present
        if is_higher or not self._senders.takes(rank, 1, now):
            self.dropped += 1
            return
        self.taken += 1
        self.rank, self.step, self.names = rank, message.step, message.names
        self._array = array

    def shown(self, layer: str | None = None) -> list[dict[str, Any]]:
        """Return the histograms of a tensor, or of all, as values that JSON has."""
        numbers = "elements", "nan", "infinite", *NUMBERS
        return [
            {
                "layer": name,
                "quantity": QUANTITIES[each["quantity"]],
                **{number: each[number].item() for number in numbers},
                "bins": each["bins"].tolist(),
            }
            for each in self._array
            if layer in (None, name := self.names[each["layer"]])
        ]
