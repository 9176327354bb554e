"""`Senders`: which messages of which workers were here, and how much of them is taken."""

from dataclasses import dataclass
from typing import Final

BURST: Final = 4.0
"""For how many seconds' worth a worker may fall behind, and send it at once."""


@dataclass(slots=True)
class _Sender:
    """The worker that has a rank."""

    worker: bytes
    allowance: float
    at: float
    """When the allowance was reckoned."""
    number: int = 0
    """Of its last message."""


class Senders:
    """The workers that log something.

    Parameters
    ----------
    per_second : float
        How much is taken from a worker, on average.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._senders: dict[int, _Sender] = {}

    def is_new(self, rank: int, worker: bytes, number: int, now: float) -> bool:
        """Note a message; return whether it was not here before.

        Parameters
        ----------
        worker : bytes
            Names the worker: another one may have its rank later.
        number : int
            Counts the messages of this worker.
        """
        sender = self._senders.get(rank)
        if sender is None or sender.worker != worker:
            sender = _Sender(worker, BURST * self._per_second, now)
            self._senders[rank] = sender
        if number <= sender.number:
            return False
        sender.number = number
        return True

    def takes(self, rank: int, amount: int, now: float) -> bool:
        """Return whether so much is taken from a worker, and note it."""
        sender = self._senders[rank]
        earned = (now - sender.at) * self._per_second
        sender.allowance = min(sender.allowance + earned, BURST * self._per_second)
        sender.at = now
        if amount > sender.allowance:
            return False
        sender.allowance -= amount
        return True
