"""Backoff: how long to wait between attempts to reach a master that is gone."""

from collections.abc import Callable, Iterator
from typing import Final

FIRST_SECONDS: Final = 0.1
SECONDS_MAX: Final = 1.0
"""A thousand workers then ask a thousand times a second, which costs a master some hundredths of a
core; and a master that is back hears of everyone within little more than a second."""

JITTER: Final = 0.5
"""A wait is shorter or longer by up to this part, so that those who lost their master together do
not come back together."""


def pauses(random: Callable[[], float]) -> Iterator[float]:
    """Yield waits in seconds, doubling up to a limit.

    Parameters
    ----------
    random : callable
        Returns numbers from 0 to 1, evenly distributed.
    """
    wait = FIRST_SECONDS
    while True:
        yield wait * (1 - JITTER + 2 * JITTER * random())
        wait = min(2 * wait, SECONDS_MAX)
