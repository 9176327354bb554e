"""`FinishedRuns`: the runs that have finished at this master.

When a worker returns to a master without a run, the master assumes that it has lost the run in a
restart, and continues with the worker's replica. If the other workers have finished that run while
this one was away, it would continue alone, with parameters that no other worker has, and never hear
of the end.

A worker's run is recognised by its name, its layout and its updates: the finished run contains all
updates of others that the worker has, and all of its own that it no longer keeps. The list is lost
when the master ends. A restarted master accepts any run, and so must one that replaces another.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_server.state.run import Run

ENDED_RUNS_MAX: Final = 16
"""How many runs are remembered; the oldest is forgotten first. Each takes some 100 bytes for each
rank that has sent an update."""


@dataclass(frozen=True, slots=True)
class _FinishedRun:
    name: str
    layout_digest: bytes
    versions: Mapping[int, int]


class FinishedRuns:
    """Remembers the last `ENDED_RUNS_MAX` runs that have finished."""

    def __init__(self) -> None:
        self._ended: deque[_FinishedRun] = deque(maxlen=ENDED_RUNS_MAX)

    def __len__(self) -> int:
        """Return the number of remembered runs."""
        return len(self._ended)

    def note(self, run: Run) -> None:
        """Remember a run that is over, if it has finished."""
        if run.finished:
            versions = dict(run.relay.versions)
            self._ended.append(_FinishedRun(run.name, _digest(model_of(run.layout)), versions))

    def find(self, join: Join) -> str | None:
        """Return the name of the finished run that a returning worker belongs to, if any."""
        resume = join.resume
        if resume is None or not self._ended:
            return None
        digest, rank = _digest(join.layout), resume.rank
        # A worker stops keeping an update of its own only when every other worker has it.
        has = {**resume.versions, rank: resume.kept_from - 1}
        for ended in self._ended:
            is_named_so = join.run in (None, ended.name) and ended.layout_digest == digest
            if is_named_so and covers(ended.versions, has):
                return ended.name
        return None

    def clear(self) -> None:
        """Forget all runs: another master may continue them."""
        self._ended.clear()


def _digest(layout: Layout) -> bytes:
    return sha256(layout.pack()).digest()
