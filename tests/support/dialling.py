"""`dial`: a worker dials a master where there is only one way to it."""

from functools import partial

from gradwire.worker.dialing import UDP, Dialing, Way
from gradwire.worker.worker import Worker
from gradwire_protocol import Endpoint


def dial(
    worker: Worker, endpoint: Endpoint, address: object, now: float, *, tries: int = 1
) -> None:
    """Have a worker dial an address, and other masters of which it learns there.

    There is time for so many `tries` that nobody answers.
    """
    way = Way(UDP, partial(endpoint.connect, address))
    dialing = Dialing(
        [way],
        str(address),
        tries * endpoint.config.connect_timeout_seconds,
        reach=lambda name, other: Way(name, partial(endpoint.connect, other), other),
    )
    worker.dial(dialing, now)
