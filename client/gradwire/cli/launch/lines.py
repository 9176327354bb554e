"""`Lines`: cuts what a process writes into lines, those that it writes over each other included.

A progress bar writes its line again and again, with a carriage return before or after it. A pipe
would show nothing until its end, and everything afterwards. So a carriage return ends a line, too,
but at most `PROGRESS_PER_SECOND` of these lines are shown: the latest one each time. A line that a
newline ends is always shown, as a terminal shows it in the end.
"""

from typing import Final

PROGRESS_SECONDS: Final = 0.5
"""From one line of progress to the next, at least, over both outputs of a process."""

LINE_BYTES_MAX: Final = 2**16
"""Longer lines are passed on in pieces."""


class Pace:
    """When a process may show progress again; its outputs share it."""

    def __init__(self) -> None:
        self.next_at = 0.0


class Lines:
    """The lines of one output."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._rest = b""
        """What no newline and no carriage return has ended."""
        self._progress = b""
        """What a carriage return has ended in this line, the latest; empty if nothing."""
        self._shown = b""
        """The part of this line that was shown last."""
        self._is_overwritten = False
        """Whether this line has had a carriage return."""

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Take what was written; return the lines to show at once."""
        shown: list[bytes] = []
        *lines, last = data.split(b"\n")
        for line in lines:
            self._overwrite(line)
            shown += self._end_line()
        self._overwrite(last)
        if len(self._rest) > LINE_BYTES_MAX:
            shown += self._end_line()
        elif self._progress:
            shown += self._show_progress(self._progress, now)
        if self.next_at is not None and self._pace.next_at <= now:
            self._pace.next_at = now + PROGRESS_SECONDS  # it may not be whole yet
        return shown

    @property
    def next_at(self) -> float | None:
        """When to call `look`; None if nothing waits to be shown."""
        return self._pace.next_at if self._latest not in (b"", self._shown) else None

    def look(self, now: float) -> list[bytes]:
        """Return the progress that is to be shown now."""
        return [] if self.next_at is None else self._show_progress(self._latest, now)

    def end(self) -> list[bytes]:
        """Return the last line, if it has no end."""
        return self._end_line() if self._rest or self._latest else []

    @property
    def _latest(self) -> bytes:
        """What a terminal shows of a line that is written over and over, as far as it is known."""
        return (self._rest or self._progress) if self._is_overwritten else b""

    def _overwrite(self, text: bytes) -> None:
        """Add text to the line; each carriage return in it begins the line anew."""
        *ended, self._rest = (self._rest + text).split(b"\r")
        if ended:
            self._is_overwritten = True
            self._progress = next((each for each in reversed(ended) if each), self._progress)

    def _show_progress(self, text: bytes, now: float) -> list[bytes]:
        if now < self._pace.next_at or text == self._shown:
            return []
        self._pace.next_at = now + PROGRESS_SECONDS
        self._shown = text
        return [text]

    def _end_line(self) -> list[bytes]:
        """Return what the line says in the end, unless that was shown."""
        final = self._rest or self._progress
        was_shown = self._is_overwritten and final and final == self._shown
        self._rest = self._progress = self._shown = b""
        self._is_overwritten = False
        return [] if was_shown else [final]
