"""`Inbox`: updates of peers, on their way from the network half of a worker to its training half.

The training half takes them when it steps, which may be seldom: a long step, an evaluation. Memory
is bounded meanwhile: if too many bytes wait, the oldest updates are conflated, that is, added up
into one vector of integers as long as the model. Nothing is lost by that, and the network never
waits for the training.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

import numpy as np

from gradwire.worker.sums import Sum
from gradwire_codecs import BlockDigests, Replica
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.snapshots import block_span

INBOX_BYTES_MAX: Final = 16 * MIB
"""Encoded updates that wait. A step of a hundred peers with updates of 20 KB takes 2 MB."""


@dataclass(frozen=True, slots=True)
class Rebase:
    """Blocks of the master's replica to put in the place of the worker's own."""

    blocks: Blocks
    """The master's digests that the worker compared its replica with."""
    values: Mapping[int, bytes]
    """By number, the blocks that differ: little-endian int32."""
    missed: bool
    """Whether they differ because the worker has missed updates, which its replica contains from
    now on. Otherwise they were damaged."""


@dataclass(slots=True)
class Arrivals:
    """The contents of an inbox."""

    rebase: Rebase | None = None
    """To apply first: the updates are for this replica."""
    updates: list[Sum] = field(default_factory=list)
    """Entries of the log, in order."""
    conflated: Int32Array | None = None
    """The sum of older updates, in quanta per element."""
    conflated_count: int = 0
    """How many updates the sum contains."""
    conflated_versions: dict[int, int] = field(default_factory=dict)
    """By rank: the last sequence in the sum; in rounds, of contributions as well."""
    position: int = 0
    """Of the log, at which the sum ends."""
    accepted: int = 0
    """The last own update that the log has up to there."""

    def __bool__(self) -> bool:
        """Return whether there is anything to apply."""
        return bool(self.updates) or self.conflated is not None or self.rebase is not None


class Inbox:
    """Safe for one thread that puts and one that takes.

    Parameters
    ----------
    elements : int
        Length of the flat vector.
    bytes_max : int
        Bytes of encoded updates that wait before the oldest are conflated.
    """

    def __init__(self, elements: int, bytes_max: int = INBOX_BYTES_MAX) -> None:
        self._elements = elements
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._waiting: deque[Sum] = deque()
        self._bytes = 0
        self._rest = Arrivals()
        """What there is besides: the replica, and the sum."""
        self._sum: Replica | None = None

    def put(self, total: Sum) -> None:
        """Add entries of the log; conflate the oldest ones if too much waits.

        Raises `MalformedUpdateError` if an update that has to be conflated is not valid.
        """
        with self._lock:
            self._waiting.append(total)
            self._bytes += total.nbytes
            self._conflate_oldest()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        with self._lock:
            return not self._waiting and self._sum is None and self._rest.rebase is None

    def take_all(self) -> Arrivals:
        """Remove and return everything."""
        with self._lock:
            arrivals, self._rest = self._rest, Arrivals()
            arrivals.updates = list(self._waiting)
            self._waiting.clear()
            self._bytes, self._sum = 0, None
            return arrivals

    def put_rebase(self, rebase: Rebase) -> None:
        """Add blocks in the place of damaged ones. Updates commute with them, and stay."""
        with self._lock:
            self._rest.rebase = rebase

    def restart(self, rebase: Rebase, later: "Inbox") -> None:
        """Replace everything by a replica and the updates that come after it.

        What was here belongs to the replica that is replaced. Both change at once, because the
        thread that takes must not find one without the other.
        """
        arrivals = later.take_all()
        with self._lock:
            self._waiting = deque(arrivals.updates)
            self._bytes = sum(each.nbytes for each in arrivals.updates)
            self._rest = replace(arrivals, rebase=rebase, updates=[])
            self._sum = None if arrivals.conflated is None else Replica(arrivals.conflated)

    def _begin_sum(self) -> Replica:
        if self._sum is None:
            self._sum = Replica.zeros(self._elements)
            self._rest.conflated = self._sum.values
        return self._sum

    def _conflate_oldest(self) -> None:
        while self._bytes > self._bytes_max:
            oldest = self._waiting.popleft()
            self._bytes -= oldest.nbytes
            self._conflate(oldest)

    def _conflate(self, total: Sum) -> None:
        conflated, rest = self._begin_sum(), self._rest
        for change in total.changes(self._elements):
            conflated.apply(change)
        rest.conflated_count += total.updates
        raise_to(rest.conflated_versions, total.versions)
        rest.position, rest.accepted = total.stop, total.accepted


def complete(values: memoryview, arrivals: Arrivals, blocks: Blocks) -> tuple[int, ...]:
    """Apply updates to the part of a replica that is here; return which blocks are not whole.

    Parameters
    ----------
    values : memoryview
        Little-endian int32; undefined where blocks are missing.
    arrivals : Arrivals
        The updates that have come since.
    blocks : Blocks
        The master's, at the versions that these updates lead to.
    """
    part = Replica(np.frombuffer(values, "<i4"))
    if arrivals.conflated is not None:
        part.values += arrivals.conflated
    for arrival in arrivals.updates:
        for change in arrival.changes(len(part)):
            part.apply(change)
    digests = BlockDigests.of(part.values, block_span(0, len(part)).stop)
    return tuple(np.flatnonzero(digests.values != digests_in(blocks)).tolist())


def digests_in(blocks: Blocks) -> UInt64Array:
    """Return the digests of the master's blocks as an array."""
    return np.frombuffer(blocks.digests, "<u8").astype(np.uint64, copy=False)
