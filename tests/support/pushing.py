"""`push`: updates of a worker, handed over as its training half does it."""

from collections.abc import Sequence

from gradwire.worker.update_log import OwnUpdate
from gradwire.worker.worker import Worker


def push(
    worker: Worker, bodies: Sequence[bytes], based_on: int, now: float, *, clock: int = 0
) -> None:
    """Have a worker send encoded updates: they are numbered and put into its log before."""
    updates = [
        OwnUpdate(worker.sequence + number, based_on, body, clock if number == len(bodies) else 0)
        for number, body in enumerate(bodies, 1)
    ]
    for update in updates:
        worker.own_updates.append(update)
    worker.push(updates, now)
