"""`Trace`: what happened in a simulated history, as lines that a person can read.

A line says when, to whom and what. What the parts of a master log is there, too.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

LINES_MAX: Final = 500_000
"""Kept at the most, the oldest giving way; some 100 bytes each."""

NAME_WIDTH: Final = 9


class Trace:
    """Lines of one history.

    Parameters
    ----------
    show : TextIO, optional
        Where each line is written at once.
    """

    def __init__(self, show: TextIO | None = None) -> None:
        self.clock: Callable[[], float] = lambda: 0.0
        """Returns the time of what happens."""
        self._lines: deque[tuple[float, str, str, tuple[object, ...]]] = deque(maxlen=LINES_MAX)
        self._show = show

    def __len__(self) -> int:
        """Return how many lines there are."""
        return len(self._lines)

    def note(self, who: str, what: str, *values: object) -> None:
        """Note what happens to somebody; the values are put into the text when it is read.

        They must not change any more.
        """
        line = (self.clock(), who, what, values)
        self._lines.append(line)
        if self._show is not None:
            self._show.write(_text_of(*line) + "\n")

    def lines(self, last: int | None = None) -> list[str]:
        """Return the lines, or the last ones."""
        first = 0 if last is None else max(len(self._lines) - last, 0)
        return [_text_of(*line) for i, line in enumerate(self._lines) if i >= first]

    def write_to(self, path: Path) -> None:
        """Write all of them to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.lines()) + "\n")

    @contextmanager
    def listening(self, who: str) -> Iterator[None]:
        """Note what is logged meanwhile as somebody's lines; nobody else hears of it."""
        logger = logging.getLogger("gradwire")
        before = logger.level, logger.propagate, logger.handlers[:]
        logger.handlers[:] = [_Listener(self, who)]
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            level, logger.propagate, logger.handlers[:] = before
            logger.setLevel(level)


class _Listener(logging.Handler):
    def __init__(self, trace: Trace, who: str) -> None:
        super().__init__()
        self._trace = trace
        self._who = who

    def emit(self, record: logging.LogRecord) -> None:
        self._trace.note(self._who, "%s", record.getMessage())


def _text_of(at: float, who: str, what: str, values: tuple[object, ...]) -> str:
    return f"{at:9.4f}  {who:<{NAME_WIDTH}}  {what % values if values else what}"
