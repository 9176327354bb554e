"""`Journal`: the last things that have happened in the runs of a master, for people to look at.

What is noted here also goes to the log, in the same words. The journal keeps the newest.
"""

import logging
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

logger = logging.getLogger("gradwire.master")

ENTRIES_MAX: Final = 1_000
"""Entries that are kept: with 300 bytes each, 0.3 MB."""

TEXT_CHARACTERS_MAX: Final = 500
"""A longer text is cut: names of workers and reasons come from other machines."""


class Happening(StrEnum):
    """What an entry is about."""

    BEGAN = "began"
    """A run begins, or goes on after a restart of the master."""
    JOINED = "joined"
    BACK = "back"
    """A worker that was lost has returned."""
    LEFT = "left"
    LOST = "lost"
    """The connection of a worker has ended without its doing."""
    EXPELLED = "expelled"
    """The master has closed the connection of a worker, for a reason that the text says."""
    OUTLYING = "outlying"
    """An update of a worker was far larger than the others', and was accepted."""
    QUARANTINED = "quarantined"
    RELEASED = "released"
    REPAIRED = "repaired"
    """A replica was not what its updates lead to."""
    CHECKPOINT = "checkpoint"
    CHECKPOINT_FAILED = "checkpoint failed"
    STOPPING = "stopping"
    """All workers are to end their training."""
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that has happened."""

    number: int
    """Counts the entries of a master, from 1 on."""
    at: float
    """When, in the master's time."""
    kind: Happening
    run: str
    rank: int | None
    """Of the worker that it is about, if it is about one."""
    text: str


class Journal:
    """Keeps what has happened. An entry that is dropped for newer ones leaves a gap in numbers."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._count = 0

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 before the first one."""
        return self._count

    def after(self, number: int) -> list[Entry]:
        """Return the entries after one of this number, the oldest first."""
        wanted = min(self._count - number, len(self._entries))
        return list(islice(self._entries, len(self._entries) - wanted, None)) if wanted > 0 else []

    def note(
        self,
        kind: Happening,
        text: str,
        *,
        run: str,
        at: float,
        rank: int | None = None,
        level: int = logging.INFO,
    ) -> Entry:
        """Keep an entry, log its text, and return it."""
        logger.log(level, "%s", text)
        self._count += 1
        entry = Entry(self._count, at, kind, run, rank, text[:TEXT_CHARACTERS_MAX])
        self._entries.append(entry)
        return entry
