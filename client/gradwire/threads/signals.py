"""Open sessions leave their runs before the process ends.

A session that the script has not closed leaves as Python ends. SIGTERM, as containers, schedulers
and ``gradwire run`` send it, would end the process at once, and lose what the script has pushed and
the network has not sent. So would SIGHUP, as a closed terminal and the daemon of pyspark send it.
So if nothing else handles the signal, the sessions leave, which takes `LEAVE_SECONDS` at
most, and then the process dies of the signal all the same. A second SIGTERM ends it at once. A
second SIGHUP does not: it is sent to the process and to its group, or by the terminal and by the
shell.

A handler of the script's own is left alone, whether it was there before the session or comes later.
It may call `Session.close`, or raise `SystemExit`. Python runs handlers on the main thread between
two instructions, so a long call into another library is finished first. A handler that waits for
the network must not interrupt code that holds a lock: the network thread may wait for that lock.
There, leaving is put off until the code has finished.

A forked child has none of this: its parent's sessions are its parent's, and a signal ends it. If
another thread has forked, the main thread may have been inside of such code, which no thread of the
child will ever finish.
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

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
"""What ends a process unless it is handled."""


class Closable(Protocol):
    """What is closed at the end: a `Session`."""

    def close(self, reason: str) -> None:
        """Leave; what was pushed arrives."""


# Kept until they are over, even if the script keeps no reference: their threads go on, and have to
# tell the master at the end.
_open: Final[dict[Closable, Callable[[], str | None]]] = {}

_blocks = 0
"""How many blocks of `uninterrupted` the main thread is inside of."""

_postponed: Final[list[Callable[[], None]]] = []
"""Calls of signal handlers that wait for the end of these blocks."""

_main_thread_forks = False
"""Whether the thread that forks is the main thread, which goes on inside of these blocks."""


def close_at_exit(session: Closable, loss_warning: Callable[[], str | None]) -> None:
    """Close a session if the process ends before the session is over.

    `loss_warning` returns what to warn of if the script ends then; None if nothing is lost.
    """
    _open[session] = loss_warning
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            with suppress(ValueError):  # not the main thread
                signal.signal(number, _end)


def forget(session: Closable) -> None:
    """Note that a session is over."""
    _open.pop(session, None)
    for number in SIGNALS:
        if not _open and signal.getsignal(number) is _end:
            with suppress(ValueError):
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Make what signal handlers `postpone` wait until the block is over."""
    global _blocks
    if get_ident() != main_thread().ident:
        yield
        return
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
        while _postponed and not _blocks:
            _postponed.pop(0)()


def postpone(call: Callable[[], None]) -> bool:
    """Call a function after the `uninterrupted` block that a signal handler has interrupted.

    Returns whether there is such a block; if not, nothing happens.
    """
    is_interrupted = _blocks > 0 and get_ident() == main_thread().ident
    if is_interrupted:
        _postponed.append(call)
    return is_interrupted


def _before_fork() -> None:
    global _main_thread_forks
    _main_thread_forks = get_ident() == main_thread().ident


def _after_fork_in_child() -> None:
    global _blocks
    _postponed.clear()
    if not _main_thread_forks:
        _blocks = 0
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    """Close what the script has not closed, and warn of what is lost."""
    for session, loss_warning in list(_open.items()):
        lost = loss_warning()
        session.close("the process ended")
        if lost is not None:
            warnings.warn(lost, GradwireWarning, stacklevel=2)


def _end(number: int, frame: FrameType | None) -> None:
    """Leave and die of the signal: now, or as soon as the session can be interrupted."""
    for each in SIGNALS:  # a SIGTERM that follows ends the process
        if signal.getsignal(each) is _end:
            signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.SIG_IGN)
    if not postpone(partial(_die, number)):
        _die(number)


def _die(number: int) -> None:
    try:
        for session in list(_open):
            session.close(f"ended by {signal.Signals(number).name}")
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # process 1 of a container survives the signal
