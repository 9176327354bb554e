"""Leases: the ranks of workers that lost their connection, kept for them until they are back.

A worker that comes back under its rank goes on with its own sequence. So whatever it had sent has
the same name as before, and whether the run has it is one number. A rank that another worker got
meanwhile would not say that any more.
"""

from dataclasses import dataclass

from gradwire_protocol import Identity


@dataclass(frozen=True, slots=True)
class Lease:
    """The place of who is expected back."""

    rank: int
    identity: Identity | None
    """Of its key: nobody else may claim it."""
    until: float
    missed_correction: bool
    """Whether something was clipped off its updates, and it may not have been told."""
    finished: bool
    """Whether the run has its last update: all that it lacks is to hear that the run is over."""


class Leases:
    """Places by the random id that a worker keeps for its life.

    Parameters
    ----------
    seconds : float
        How long a place is kept.
    most : int
        Places at once, the oldest giving way.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._by_worker: dict[bytes, Lease] = {}

    def __len__(self) -> int:
        """Return how many places are kept."""
        return len(self._by_worker)

    def keep_place(
        self,
        worker_id: bytes,
        rank: int,
        identity: Identity | None,
        now: float,
        *,
        missed_correction: bool = False,
        finished: bool = False,
    ) -> None:
        """Keep the place of a worker that is gone."""
        self._by_worker.pop(worker_id, None)
        while len(self._by_worker) >= self._most:
            del self._by_worker[next(iter(self._by_worker))]
        until = now + self._seconds
        self._by_worker[worker_id] = Lease(rank, identity, until, missed_correction, finished)

    def find(self, worker_id: bytes, identity: Identity | None, now: float) -> Lease | None:
        """Return the place of a worker, if it is kept and its own."""
        self._expire(now)
        lease = self._by_worker.get(worker_id)
        if lease is None or _key_of(lease.identity) != _key_of(identity):
            return None
        return lease

    def end(self, worker_id: bytes) -> None:
        """Forget a place: who it was kept for is back."""
        self._by_worker.pop(worker_id, None)

    def end_of(self, identity: Identity | None) -> None:
        """Forget the places of who has another process in its place now, with the same key."""
        key_id = _key_of(identity)
        for worker_id, lease in list(self._by_worker.items()):
            if key_id is not None and _key_of(lease.identity) == key_id:
                del self._by_worker[worker_id]

    def ranks(self, now: float) -> frozenset[int]:
        """Return the ranks that nobody else may have."""
        self._expire(now)
        return frozenset(lease.rank for lease in self._by_worker.values())

    @property
    def has_finished(self) -> bool:
        """Whether somebody is expected who has sent everything."""
        return any(lease.finished for lease in self._by_worker.values())

    def clear(self) -> None:
        """Forget all places: the run is over."""
        self._by_worker.clear()

    def _expire(self, now: float) -> None:
        for worker_id, lease in list(self._by_worker.items()):
            if lease.until <= now:
                del self._by_worker[worker_id]


def _key_of(identity: Identity | None) -> bytes | None:
    return None if identity is None else identity.key_id
