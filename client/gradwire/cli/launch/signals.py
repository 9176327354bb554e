"""Signals that end a command, and with it every process that it has started."""

import signal
import sys


def ending_signals() -> list[signal.Signals]:
    """Return the signals to end at: under nohup, SIGHUP is ignored and stays so."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def exit_on_signals() -> None:
    """Have each of them raise `SystemExit`, with 128 plus its number, as shells have it.

    So what a block has started ends with it, and its files are deleted.
    """
    for number in ending_signals():
        signal.signal(number, lambda number, _: sys.exit(128 + number))
