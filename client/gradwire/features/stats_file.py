"""`StatsFile`: a session's numbers in a file, for tools that watch a script and do not change it.

With ``GRADWIRE_STATS_FILE=/run/stats-{rank}.json`` in the environment of a script, its session
writes there, as one JSON object, what `Session.stats` says and how long steps take, with and
without the session. The file is replaced as a whole, at most once a second and when the session
ends. So a reader finds the numbers of one moment, and the file does not grow. ``{rank}`` stands for
the rank. It is no setting of `join`: nothing about the training depends on it.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final, Self

from gradwire.participant.feature import Feature
from gradwire.replica.stats import SessionStats

logger = logging.getLogger("gradwire.stats")

VARIABLE: Final = "GRADWIRE_STATS_FILE"

WRITE_SECONDS: Final = 1.0
"""Least time between two replacements of the file."""

RECENT: Final = 256
"""The file has the median times of this many steps."""


class StatsFile(Feature):
    """Writes what a session does to a file.

    It is the last feature of a session, and its `beginning` the first one, so that the time of
    other features counts as the session's.

    Parameters
    ----------
    parameters : int
        How many the model has.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        parameters: int,
        read: Callable[[], SessionStats],
        *,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.beginning: Feature = _Beginning(self)
        self._path = path
        self._rank = rank
        self._parameters = parameters
        self._clock = clock
        self._read = read
        self._computing: deque[float] = deque(maxlen=RECENT)
        self._sharing: deque[float] = deque(maxlen=RECENT)
        self._started = clock()
        self._began: float | None = None
        self._ended: float | None = None
        self._due = self._started
        self._failed = False

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        rank: int,
        parameters: int,
        read: Callable[[], SessionStats],
    ) -> Self | None:
        """Return one for the file that the environment names; None if it names none."""
        name = environ.get(VARIABLE)
        if not name:
            return None
        return cls(Path(name.replace("{rank}", str(rank))), rank, parameters, read)

    def note_beginning(self) -> None:
        """Note that the optimizer has stepped, and the session's part of the step begins."""
        self._began = self._clock()
        if self._ended is not None:
            self._computing.append(self._began - self._ended)
            self._ended = None  # a paused step does not end

    def after_step(self) -> None:
        """Note the end of the session's part of a step; write, if it is time."""
        now = self._ended = self._clock()
        if self._began is not None:
            self._sharing.append(now - self._began)
        if now >= self._due:
            self._due = now + WRITE_SECONDS
            self._write()

    def on_leave(self) -> None:
        """Write the last numbers."""
        self._write()

    def _write(self) -> None:
        if self._failed:
            return
        found = {
            "rank": self._rank,
            "parameters": self._parameters,
            "seconds": self._clock() - self._started,
            "step_seconds": median(self._computing) if self._computing else None,
            "session_seconds": median(self._sharing) if self._sharing else None,
            "stats": asdict(self._read()),
        }
        whole = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            whole.write_text(json.dumps(found, default=float) + "\n", encoding="utf-8")
            whole.replace(self._path)
        except OSError as error:
            self._failed = True
            logger.warning("%s is not written any more: %s", self._path, error)


class _Beginning(Feature):
    """Tells when the session's part of a step begins."""

    def __init__(self, file: StatsFile) -> None:
        self._file = file

    def before_push(self) -> None:
        self._file.note_beginning()
