"""`Timer`: calls back at a time, precise to some tens of microseconds, on any event loop.

The loops' own timers are too coarse to pace datagrams: asyncio's sleep in whole milliseconds, and
uvloop's fire at once if less than half a millisecond is left. Linux has timers that are file
descriptors, which a loop watches like sockets. Other systems use the loop's timers.

Times are those of `time.monotonic`. The loops use this clock, too, but uvloop reads it once for
every round and cuts it to milliseconds.
"""

import asyncio
import ctypes
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from time import CLOCK_MONOTONIC, monotonic
from typing import Final

LOOP_SECONDS_MIN: Final = 0.001
"""Resolution of the loops' timers: one set to less may fire at once, again and again."""

_libc = ctypes.PyDLL(None)
"""Calls through it keep the GIL: they are too short to give it to another thread."""

_itimerspec = Struct("@4l")
"""The interval, which is zero, and the time, each in seconds and nanoseconds."""

TFD_TIMER_ABSTIME: Final = 1
"""Linux's flag: the time is absolute, not counted from now."""


class Timer:
    """Calls back on the loop once for every deadline, never before it.

    Setting a deadline takes a system call only if it is earlier than the system's alarm. If the
    deadline moves later or is removed, as an idle timeout does with every datagram, the alarm stays
    and goes off without a call back. `precise` is whether to use Linux's timers, if there are any.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], object],
        *,
        precise: bool = True,
    ) -> None:
        self._callback = callback
        self._deadline: float | None = None
        self._alarm_at = math.inf
        descriptor = _new_timer_descriptor() if precise else None
        self.is_precise = descriptor is not None
        """Whether a timer of Linux wakes it, to some tens of microseconds; else the loop does."""
        self._alarm: _LoopAlarm | _DescriptorAlarm = (
            _LoopAlarm(loop, self._expired)
            if descriptor is None
            else _DescriptorAlarm(loop, self._expired, descriptor)
        )

    def set(self, deadline: float | None) -> None:
        """Replace the deadline; `None` removes it."""
        self._deadline = deadline
        if deadline is not None and deadline < self._alarm_at:
            self._alarm_at = deadline
            self._alarm.set(deadline)

    def close(self) -> None:
        """Remove the deadline and end the alarm."""
        self._deadline = None
        self._alarm.close()

    def _expired(self) -> None:
        self._alarm_at = math.inf
        deadline = self._deadline
        if deadline is None:
            return
        if monotonic() < deadline:
            self.set(deadline)
        else:
            self._deadline = None
            self._callback()


class _LoopAlarm:
    """The loop's own timers, which may wake a `Timer` before its time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        wait = max(at - monotonic(), LOOP_SECONDS_MIN)
        self._handle = self._loop.call_later(wait, self._expired)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class _DescriptorAlarm:
    """A timer of Linux that becomes readable at its time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None], descriptor: int
    ) -> None:
        self._loop = loop
        self._expired = expired
        self._descriptor = descriptor
        loop.add_reader(descriptor, self._readable)

    def set(self, at: float) -> None:
        # Rounded up, so as not to go off too early; zero would mean never.
        _set_timer_descriptor(self._descriptor, max(math.ceil(at * 1e9), 1))

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _readable(self) -> None:
        with suppress(BlockingIOError):  # set again since the loop saw it
            os.read(self._descriptor, 8)
        self._expired()


def _new_timer_descriptor() -> int | None:
    """Return the descriptor of a timer; `None` if this system has none."""
    if sys.platform != "linux":
        return None
    descriptor: int = _libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return descriptor if descriptor >= 0 else None


def _set_timer_descriptor(descriptor: int, nanoseconds: int) -> None:
    times = _itimerspec.pack(0, 0, *divmod(nanoseconds, 1_000_000_000))
    _libc.timerfd_settime(descriptor, TFD_TIMER_ABSTIME, times, None)
