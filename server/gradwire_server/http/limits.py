"""Every bound of the HTTP side in one place, each with its reason or its arithmetic.

Figures are from one core of an AMD EPYC. A connection with one request costs 0.2 ms from accept to
close; making the metrics costs 1 ms with 56 workers, 9 ms with 1,000 and 36 ms with 4,094.
"""

from dataclasses import dataclass
from typing import Final

from gradwire_protocol.limits import KIB

TOKEN_CHARACTERS_MIN: Final = 16
"""Of letters and digits drawn at random, 95 bits: at 100 guesses a second, out of reach."""

TOKEN_BYTES_MAX: Final = 4 * KIB
"""Of its file. Half of what a request's header line may have (8,190 bytes in aiohttp)."""

FAILED_PAGE_SECONDS: Final = 1.0
"""A page that could not be made is tried again, and a failure logged again, after so long."""

STEP_SECONDS_MAX: Final = 0.001
"""Work on a page goes on for so long before datagrams have their turn. One family of metrics is not
interrupted, so that with 1,000 workers it can become 4 ms."""

LINGERING_SECONDS_MAX: Final = 1.0
"""How long the rest of a request is waited for that has its answer: closed before, the connection
would be reset, and the answer might get lost."""

CLOSE_SECONDS_MAX: Final = 0.5
"""How long an open request may hold up the end of the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What all visitors together may take.

    Memory: `connections_max` times a request and a page, 64 · (16 + 16) KiB = 2 MiB with 56
    workers, where a page has 15 KB, and 20 MiB with 4,094, where it has 260 KB.
    """

    connections_max: int = 64
    """Open at once. One more ends the oldest: a visitor who takes milliseconds is served even while
    others hold every place. Under a flood each still has `connections_max - connections_burst_max`
    over `connections_per_second_max`, half a second."""

    connections_per_second_max: float = 100.0
    """More wait in the kernel's queue, where they cost no time of ours: so a flood costs 100 · 0.2
    ms a second, 2 % of a core. An answer that says "too many" would cost as much as the page."""

    connections_burst_max: int = 16
    """Let in at once after a quiet time."""

    connection_seconds_max: float = 10.0
    """From accept to the last byte, as each carries one request: this ends those who send slowly
    and those who read slowly. Prometheus gives a scrape as long by default."""

    request_bytes_max: int = 16 * KIB
    """All that a visitor may send. A scrape has 0.3 KiB; a browser sends the cookies of everything
    else on localhost, too."""

    load_max: float = 0.05
    """Part of the time that may be spent on making one page. A client that asks for it more often
    gets the last one: 20 ms old at most with 56 workers, 0.7 s with 4,094."""
