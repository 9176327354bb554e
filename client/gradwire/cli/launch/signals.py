"""Signals that end a command, and with it every process that it has started."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Outcome = TypeVar("Outcome")


def handle_ending_signals(handler: Callable[[signal.Signals], object]) -> None:
    """Have a function called in the running event loop for SIGINT, SIGTERM and SIGHUP."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has SIGHUP ignored
            asyncio.get_running_loop().add_signal_handler(number, handler, number)


def run_until_signal(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine in an event loop of its own. A signal cancels it.

    `SystemExit` after a signal, with 128 plus its number, as shells have it.
    """
    received: list[signal.Signals] = []

    async def work_under_signals() -> Outcome:
        task = asyncio.current_task()
        assert task is not None

        def cancel(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()

        handle_ending_signals(cancel)
        return await work

    try:
        return asyncio.run(work_under_signals())
    except asyncio.CancelledError:
        raise SystemExit(128 + received[0]) from None
