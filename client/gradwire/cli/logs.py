"""Formats of log lines, and a filter for repeated ones."""

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

REPEAT_SECONDS: Final = 1.0
"""Least time between two warnings or errors of one class: a peer that can provoke them could
otherwise fill a disk."""


class TextFormatter(logging.Formatter):
    """One line of text, for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class RepeatFilter(logging.Filter):
    """Lets one warning or error of each class through every second, and counts the others.

    A class is a logger, a level, and a text without its values; so there are at most as many as
    lines of code that log. The next line of a class says how many were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged."""
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        at, left_out = self._said.get(key, (float("-inf"), 0))
        if now - at < REPEAT_SECONDS:
            self._said[key] = at, left_out + 1
            return False
        self._said[key] = now, 0
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like this before)"
            record.args = ()
        return True
