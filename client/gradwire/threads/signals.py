"""The end of a process: its sessions leave first.

A script that ends without having closed its session leaves as Python ends. One that is told to end
by SIGTERM, as containers, schedulers and ``gradwire run`` do it, would die at once, and with it
what it has pushed and the network has not sent yet. So where nobody else does anything about
SIGTERM, its sessions leave, which takes `leave_timeout_seconds` at most, and then the process dies
of the signal all the same. A second SIGTERM ends it at once.

A handler of the script's own is left alone, whether it was there before the session or comes later;
it may call `Session.close`, or raise `SystemExit`. Python runs handlers on the main thread between
two instructions, so a long call into another library is finished first. In the middle of what takes
a lock, a handler that waits for the network would wait for a thread that waits for that lock: so
there, leaving is put off until it is over.
"""

import atexit
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import get_ident, main_thread
from types import FrameType
from typing import Final, Protocol

from gradwire.errors import GradwireWarning


class Leaving(Protocol):
    """What has to be closed: a `Session`."""

    def close(self, reason: str) -> None:
        """Leave; what was pushed arrives."""


# Held until they are over, also where the script keeps no reference: their threads go on, and the
# master has to be told at the end.
_open: Final[dict[Leaving, Callable[[], str | None]]] = {}

_blocks = 0
"""How many blocks of `uninterrupted` the main thread is in."""

_put_off: Final[list[Callable[[], None]]] = []
"""What signal handlers could not do inside of them."""


def close_at_the_end(session: Leaving, what_is_lost: Callable[[], str | None]) -> None:
    """Have a session closed if the process ends before it is over.

    Parameters
    ----------
    session : Leaving
    what_is_lost : callable
        Returns what to warn of if the script ends then; None where that is nothing.
    """
    _open[session] = what_is_lost
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with suppress(ValueError):  # on another thread than the main one
            signal.signal(signal.SIGTERM, _end)


def forget(session: Leaving) -> None:
    """Take note that a session is over."""
    _open.pop(session, None)
    if not _open and signal.getsignal(signal.SIGTERM) is _end:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let what signal handlers `put_off` wait until the block is over."""
    global _blocks
    if get_ident() != main_thread().ident:
        yield
        return
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
        while _put_off and not _blocks:
            _put_off.pop(0)()


def put_off(call: Callable[[], None]) -> bool:
    """Have something done after the `uninterrupted` block that a handler has interrupted.

    Returns whether there is one; otherwise nothing happens.
    """
    is_interrupted = _blocks > 0 and get_ident() == main_thread().ident
    if is_interrupted:
        _put_off.append(call)
    return is_interrupted


@atexit.register
def _close_all() -> None:
    """Let master and user know when a script ends without having closed its session."""
    for session, what_is_lost in list(_open.items()):
        lost = what_is_lost()
        session.close("the process ended")
        if lost is not None:
            warnings.warn(lost, GradwireWarning, stacklevel=2)


def _end(number: int, frame: FrameType | None) -> None:
    """Leave, and die of the signal, now or as soon as the session is not in the middle of it."""
    signal.signal(number, signal.SIG_DFL)  # for a second one
    if not put_off(partial(_die, number)):
        _die(number)


def _die(number: int) -> None:
    try:
        for session in list(_open):
            session.close(f"ended by {signal.Signals(number).name}")
    finally:
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # the first process of a container does not die of it
