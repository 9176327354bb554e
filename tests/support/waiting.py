"""Waiting for a condition, always with a deadline, and never longer than until it holds."""

import asyncio
from collections.abc import Callable
from threading import Event
from time import monotonic

POLL_SECONDS = 0.002


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = 10.0) -> None:
    """Wait until another thread or process has made a condition true; fail with `what` if not."""
    deadline = monotonic() + seconds
    never = Event()
    while not condition():
        assert monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        never.wait(POLL_SECONDS)


async def until(condition: Callable[[], object], what: str, *, seconds: float = 10.0) -> None:
    """Wait until something else on this event loop has made a condition true."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        await asyncio.sleep(POLL_SECONDS)
