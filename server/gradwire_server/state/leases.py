"""Leases: the ranks of workers that lost their connection, reserved until they return.

A worker that returns under its rank continues its sequence. So all that it had sent keeps its name,
and one number says which of it the run has. That would not hold if another worker had been given
the rank meanwhile.
"""

from dataclasses import dataclass

from gradwire_protocol import Identity


@dataclass(frozen=True, slots=True)
class Lease:
    """A rank that is reserved for a worker."""

    rank: int
    identity: Identity | None
    """From the worker's key. A worker with another key cannot claim the lease."""
    until: float
    missed_correction: bool
    """Whether an update of the worker was clipped, and the correction may not have arrived."""
    finished: bool
    """Whether the worker has finished: it only has to hear that the run is over."""
    awaited_until: float
    """Until when the run does not finish without the worker."""


class Leases:
    """Leases by worker id, a random id that a worker keeps for its life.

    A lease lasts `seconds`. There are `most` of them; a further one ends the oldest.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._by_worker: dict[bytes, Lease] = {}

    def __len__(self) -> int:
        """Return the number of leases."""
        return len(self._by_worker)

    def reserve(
        self,
        worker_id: bytes,
        rank: int,
        identity: Identity | None,
        now: float,
        *,
        missed_correction: bool = False,
        finished: bool = False,
        awaited_until: float = 0.0,
    ) -> None:
        """Reserve the rank of a worker that has lost its connection."""
        self._by_worker.pop(worker_id, None)
        while len(self._by_worker) >= self._most:
            del self._by_worker[next(iter(self._by_worker))]
        until = now + self._seconds
        self._by_worker[worker_id] = Lease(
            rank, identity, until, missed_correction, finished, awaited_until
        )

    def find(self, worker_id: bytes, identity: Identity | None, now: float) -> Lease | None:
        """Return the lease of a worker; None if it has expired or belongs to another key."""
        self._expire(now)
        lease = self._by_worker.get(worker_id)
        if lease is None or _key_of(lease.identity) != _key_of(identity):
            return None
        return lease

    def end(self, worker_id: bytes) -> None:
        """End the lease of a worker that has returned."""
        self._by_worker.pop(worker_id, None)

    def end_of(self, identity: Identity | None) -> None:
        """End the leases of a key with which another process has joined now."""
        key_id = _key_of(identity)
        for worker_id, lease in list(self._by_worker.items()):
            if key_id is not None and _key_of(lease.identity) == key_id:
                del self._by_worker[worker_id]

    def ranks(self, now: float) -> frozenset[int]:
        """Return the reserved ranks."""
        self._expire(now)
        return frozenset(lease.rank for lease in self._by_worker.values())

    @property
    def has_finished(self) -> bool:
        """Whether a worker that has finished is expected to return."""
        return any(lease.finished for lease in self._by_worker.values())

    def awaited_until(self, now: float) -> float | None:
        """Return until when the run does not finish without one of them; None if it may."""
        latest = max((lease.awaited_until for lease in self._by_worker.values()), default=0.0)
        return latest if latest > now else None

    def clear(self) -> None:
        """End all leases: the run is over."""
        self._by_worker.clear()

    def _expire(self, now: float) -> None:
        for worker_id, lease in list(self._by_worker.items()):
            if lease.until <= now:
                del self._by_worker[worker_id]


def _key_of(identity: Identity | None) -> bytes | None:
    return None if identity is None else identity.key_id
