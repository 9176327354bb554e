"""`Lines`: cuts what a process writes into lines, those that it writes over each other included.

A progress bar writes its line again and again, with a carriage return before or after it, and ends
it much later. The latest state of such a line is shown, every `PROGRESS_SECONDS` at most. A line
that a newline ends is shown at once, as a terminal shows it in the end.
"""

from collections.abc import Callable
from typing import Final

PROGRESS_SECONDS: Final = 0.5

LINE_BYTES_MAX: Final = 2**16
"""Longer lines are shown in pieces."""


class Lines:
    """The lines of one output; `later` calls a function after so many seconds."""

    def __init__(
        self, show: Callable[[str], None], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._show = show
        self._later = later
        self._line = b""
        """What no newline has ended, from its latest state on."""
        self._shown: bytes | None = None
        """The state of this line that was shown last."""
        self._waits = False
        """Whether progress was shown less than `PROGRESS_SECONDS` ago."""

    def feed(self, data: bytes) -> None:
        """Take what was written."""
        *lines, line = (self._line + data).split(b"\n")
        for ended in lines:
            self._end_line(ended)
        self._line = line[max(line.rstrip(b"\r").rfind(b"\r"), 0) :]
        if len(self._line) > LINE_BYTES_MAX:
            self.end()
        elif not self._waits:
            self._show_progress()

    def end(self) -> None:
        """Show the last line, if it has no end."""
        if self._line:
            self._end_line(self._line)
            self._line = b""

    def _show_progress(self) -> None:
        state = _state(self._line)
        self._waits = b"\r" in self._line and state not in (b"", self._shown)
        if self._waits:
            self._shown = state
            self._show(state.decode(errors="replace"))
            self._later(PROGRESS_SECONDS, self._show_progress)

    def _end_line(self, line: bytes) -> None:
        state = _state(line)
        if state != self._shown:
            self._show(state.decode(errors="replace"))
        self._shown = None


def _state(line: bytes) -> bytes:
    """Return what a terminal shows of a line after all its carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
