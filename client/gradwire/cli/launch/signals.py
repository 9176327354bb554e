"""Signals that end a command, and with it every process that it has started."""

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handle_ending_signals(handler: Callable[[signal.Signals], object]) -> None:
    """Have a function called in the running event loop for each of `ENDING`."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has SIGHUP ignored
            asyncio.get_running_loop().add_signal_handler(number, handler, number)


def exit_on_signals() -> None:
    """Have each of `ENDING` raise `SystemExit`, with 128 plus its number, as shells have it.

    So what a block has started ends with it, and its files are deleted.
    """
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
