"""`Senders`: which messages of which workers were here, and how much of them is taken."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwire_server.series.saved import SENDER, SENDERS_MAX, array_of

NUMBERS_KEPT: Final = 64
"""A worker has a few messages under way. An older one than so many before was here already."""

BURST: Final = 4.0
"""For how many seconds' worth a worker may fall behind, and send it at once."""


@dataclass(slots=True)
class _Sender:
    """A connection's worth of messages of one worker."""

    numbers: set[int] = field(default_factory=set)
    """Of the last messages."""
    allowance: float = 0.0
    at: float = 0.0
    """When the allowance was reckoned."""


class Senders:
    """The workers that log something.

    Parameters
    ----------
    per_second : float
        How much is taken from a worker, on average.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._senders: dict[tuple[int, bytes], _Sender] = {}

    def is_new(self, rank: int, worker: bytes, number: int, now: float) -> bool:
        """Note a message; return whether it was not here before.

        Parameters
        ----------
        worker : bytes
            Names the worker: another one may have its rank later.
        number : int
            Counts the messages of this worker, which may come in any order.
        """
        sender = self._senders.get((rank, worker))
        if sender is None:
            self._forget(rank)
            sender = _Sender(allowance=BURST * self._per_second, at=now)
            self._senders[rank, worker] = sender
        newest = max(sender.numbers, default=0)
        if number in sender.numbers or number <= newest - NUMBERS_KEPT:
            return False
        sender.numbers.add(number)
        oldest = max(newest, number) - NUMBERS_KEPT
        sender.numbers = {each for each in sender.numbers if each > oldest}
        return True

    def takes(self, rank: int, worker: bytes, amount: float, now: float) -> bool:
        """Return whether so much is taken from a worker whose message is new, and note it."""
        sender = self._senders[rank, worker]
        earned = (now - sender.at) * self._per_second
        sender.allowance = min(sender.allowance + earned, BURST * self._per_second)
        sender.at = now
        if amount > sender.allowance:
            return False
        sender.allowance -= amount
        return True

    def save(self) -> bytes:
        """Return which messages were here: an array of `SENDER`."""
        heard = sorted(self._senders.items(), key=lambda item: item[1].at)[-SENDERS_MAX:]
        rows = []
        for (rank, worker), sender in heard:
            newest = max(sender.numbers, default=0)
            seen = sum(1 << (newest - number) for number in sender.numbers)
            rows.append((rank, worker, newest, seen))
        return np.array(rows, SENDER).tobytes()

    def restore(self, saved: bytes) -> None:
        """Go on from what was saved: no message of these workers is taken that was here."""
        for row in array_of(saved, SENDER, "workers"):
            rank, newest, seen = (int(row[name]) for name in ("rank", "newest", "seen"))
            numbers = {newest - at for at in range(NUMBERS_KEPT) if seen >> at & 1 and newest > at}
            sender = _Sender(numbers, allowance=BURST * self._per_second)
            self._senders[rank, row["worker"].tobytes()] = sender

    def _forget(self, rank: int) -> None:
        """Forget the workers that had a rank before."""
        for key in [key for key in self._senders if key[0] == rank]:
            del self._senders[key]
