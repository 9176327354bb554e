"""The inbox: updates of peers, from the network thread to the training thread.

The training thread takes them when it steps, which may be seldom: a long step, an evaluation. What
waits meanwhile is bounded: beyond so many bytes, updates are conflated, that is, added up into one
vector of integers as long as the model. Nothing is lost by that, and the network is never made to
wait for the training.
"""

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from gradwire_codecs import Replica
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages import EncodedUpdate

INBOX_BYTES_MAX: Final = 16 * MIB
"""Encoded updates that wait; a step of a hundred peers with 20 KB updates takes 2 MB."""


@dataclass(slots=True)
class Arrivals:
    """What the inbox held."""

    updates: list[tuple[int | None, EncodedUpdate]] = field(default_factory=list)
    """Rank and update, in the order they came; without a rank, corrections of what we sent."""
    conflated: Int32Array | None = None
    """The sum of older ones, in quanta per element."""
    conflated_count: int = 0
    """How many updates that sum contains."""
    conflated_versions: dict[int, int] = field(default_factory=dict)
    """The last sequence of each rank in it."""


class Inbox:
    """Safe for one thread that puts and one that takes.

    Parameters
    ----------
    elements : int
        Length of the flat vector.
    bytes_max : int
        Encoded updates kept before they are conflated.
    """

    def __init__(self, elements: int, bytes_max: int = INBOX_BYTES_MAX) -> None:
        self._elements = elements
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._waiting: deque[tuple[int | None, EncodedUpdate]] = deque()
        self._bytes = 0
        self._sum: Replica | None = None
        self._sum_count = 0
        self._sum_versions: dict[int, int] = {}

    def put(self, rank: int | None, update: EncodedUpdate) -> None:
        """Add an update; conflate the oldest ones where too much waits.

        Parameters
        ----------
        rank : int or None
            Its origin; None for a correction, which is part of no version.
        update : EncodedUpdate

        Raises
        ------
        MalformedUpdateError
            If an update that has to be conflated is not valid.
        """
        with self._lock:
            self._waiting.append((rank, update))
            self._bytes += len(update.body)
            while self._bytes > self._bytes_max:
                self._conflate(*self._waiting.popleft())

    def take(self) -> Arrivals:
        """Remove and return everything."""
        with self._lock:
            arrivals = Arrivals(list(self._waiting))
            self._waiting.clear()
            self._bytes = 0
            if self._sum is not None:
                arrivals.conflated = self._sum.values
                arrivals.conflated_count = self._sum_count
                arrivals.conflated_versions = self._sum_versions
                self._sum, self._sum_count, self._sum_versions = None, 0, {}
            return arrivals

    def _conflate(self, rank: int | None, update: EncodedUpdate) -> None:
        if self._sum is None:
            self._sum = Replica.zeros(self._elements)
        self._sum.apply(update.body)
        self._bytes -= len(update.body)
        if rank is not None:
            self._sum_count += 1
            self._sum_versions[rank] = update.sequence
