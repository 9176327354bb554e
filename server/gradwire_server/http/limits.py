"""Limits of the HTTP server, each with its reason or its arithmetic.

Measured on one core of an AMD EPYC: a connection with one request costs 0.2 ms from accept to
close; making the metrics costs 1 ms with 56 workers, 9 ms with 1,000 and 36 ms with 4,094.
"""

from dataclasses import dataclass
from typing import Final

from gradwire_protocol.limits import KIB

FAILED_PAGE_SECONDS: Final = 1.0
"""How long after a failure a page is made again, and a further failure logged."""

STEP_SECONDS_MAX: Final = 0.001
"""How long work on a page goes on before datagrams have their turn. One family of metrics is not
interrupted, so with 1,000 workers it can take 4 ms."""

LINGERING_SECONDS_MAX: Final = 1.0
"""How long aiohttp reads the rest of a request that it has answered: closing at once would reset
the connection, and the answer might get lost."""

CLOSE_SECONDS_MAX: Final = 0.5
"""How long an open request may delay the end of the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits for all clients together.

    Memory: `connections_max` times a request and a page, 64 · (16 + 16) KiB = 2 MiB with 56
    workers, where a page has 15 KB, and 20 MiB with 4,094, where it has 260 KB.
    """

    connections_max: int = 64
    """Open at once. One more ends the oldest, so a client that needs milliseconds is served even
    while others keep every place busy. Under a flood each connection still has
    `connections_max - connections_burst_max` over `connections_per_second_max`, half a second."""

    streams_max: int = 1_024
    """Live pages open at once, beyond the connections above."""

    streams_load_max: float = 0.02
    """Part of the time that may be spent on all live pages together. What 200 workers log, 100
    scalars a second each, takes 2 or 3 % of a core: with it, less than 5 % of what updates have."""

    connections_per_second_max: float = 100.0
    """More wait in the kernel's queue, where they cost the master no time: a flood costs 100 · 0.2
    ms a second, 2 % of a core. An answer that says "too many" would cost as much as the page."""

    connections_burst_max: int = 16
    """Accepted at once after a quiet time."""

    connection_seconds_max: float = 10.0
    """From accept to the last byte of the one request: this ends clients that send slowly or read
    slowly. Prometheus allows a scrape as long by default."""

    request_bytes_max: int = 16 * KIB
    """Bytes that a client may send. A scrape has 0.3 KiB; a browser adds its cookies for every
    other server on localhost."""

    load_max: float = 0.05
    """Part of the time that may be spent on making one page. A client that asks more often gets the
    last one: 20 ms old at most with 56 workers, 0.7 s with 4,094."""
