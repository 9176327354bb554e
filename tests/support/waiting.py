"""Waiting for a condition, always with a deadline, and never longer than until it holds."""

import asyncio
from collections.abc import Callable
from threading import Event
from time import monotonic

POLL_SECONDS = 0.002


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = 10.0) -> None:
    """Wait until another thread or process has made a condition true; fail with `what` if not."""
    assert comes_true(condition, seconds=seconds), f"waited {seconds:g} s in vain for {what}"


def comes_true(condition: Callable[[], object], *, seconds: float) -> bool:
    """Wait until another thread or process has made a condition true; return whether it has."""
    deadline = monotonic() + seconds
    never = Event()
    while not (holds := condition()) and monotonic() < deadline:
        never.wait(POLL_SECONDS)
    return bool(holds)


async def until(condition: Callable[[], object], what: str, *, seconds: float = 10.0) -> None:
    """Wait until something else on this event loop has made a condition true."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        await asyncio.sleep(POLL_SECONDS)
