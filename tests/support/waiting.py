"""Every deadline of the tests, and waiting for a condition until one of them.

A deadline says when a test gives up, never how fast something has to be: it is generous, and it is
multiplied by `FACTOR`, how slow this machine was when the tests began, with all that ran beside
them. A test names the kind of thing that it waits for and writes no seconds of its own.
"""

import asyncio
import os
import statistics
from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Final

POLL_SECONDS: Final = 0.002

COUNTING_SECONDS: Final = 0.025
"""What a processor of the year 2026 with nothing else to do takes to count to a million."""
FACTOR_MAX: Final = 10.0
VARIABLE: Final = "TESTS_FACTOR"
"""The process that starts the others measures; they, and what tests start, read it here."""


def _factor() -> float:
    """Return how many times longer than `COUNTING_SECONDS` it takes here and now, at least 1."""
    known = os.environ.get(VARIABLE)
    if known:
        return float(known)
    taken = statistics.median(_counting_seconds() for _ in range(5)) / COUNTING_SECONDS
    factor = round(min(max(taken, 1.0), FACTOR_MAX), 1)
    os.environ[VARIABLE] = str(factor)
    return factor


def _counting_seconds() -> float:
    before = monotonic()
    number = 0
    while number < 1_000_000:
        number += 1
    return monotonic() - before


FACTOR: Final = _factor()

SOON: Final = 20.0 * FACTOR
"""For another thread, or something else on the same event loop."""
PROCESS: Final = 120.0 * FACTOR
"""For another process: to start, to say its next line, to end. A master has taken more than 30 s to
start beside fifteen busy processes."""
JOB: Final = 300.0 * FACTOR
"""For several processes to train, and for a cluster of Spark."""
BENCHMARK: Final = 60.0 * FACTOR
"""For a benchmark with ``--quick``, which takes a third of it on a machine of its own."""

BRIEF: Final = 0.05
"""For limits of the product that have to pass in a test, and for nothing that has to come first."""

SILENCE: Final = 2.0 * FACTOR
"""An idle timeout for a test that waits until it has passed: a process that is alive is heard from
within it, however busy the machine is."""

TEST_SECONDS: Final = {
    "integration/spark": 2 * JOB,
    "integration": JOB,
    "simulation": JOB,
    "session": PROCESS,
    "unit": PROCESS,
}
"""After which a test has hung, by folder: the first that it is in."""


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = SOON) -> None:
    """Wait until another thread has made a condition true; fail with `what` if not."""
    assert comes_true(condition, seconds=seconds), f"waited {seconds:g} s in vain for {what}"


def wait_for_process(condition: Callable[[], object], what: str) -> None:
    """Wait until another process has made a condition true; fail with `what` if not."""
    wait_until(condition, what, seconds=PROCESS)


def comes_true(condition: Callable[[], object], *, seconds: float = SOON) -> bool:
    """Wait until another thread or process has made a condition true; return whether it has."""
    deadline = monotonic() + seconds
    never = Event()
    while not (holds := condition()) and monotonic() < deadline:
        never.wait(POLL_SECONDS)
    return bool(holds)


async def until(condition: Callable[[], object], what: str, *, seconds: float = SOON) -> None:
    """Wait until something else on this event loop has made a condition true."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        await asyncio.sleep(POLL_SECONDS)
