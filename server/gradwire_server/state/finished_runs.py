"""`FinishedRuns`: which runs were finished here, for who was away and does not know.

A worker that is back, and that a master without a run knows nothing of, is taken for one of a run
that was lost with the memory of the master: its replica is what the run goes on with. Where its
run was finished by the others meanwhile, it would go on alone, with parameters that nobody else
has, and never hear of it.

A run is known again by its name and its layout, and by the updates: what the worker has of others
is in a run that was finished, and so is all of its own that it does not keep any more. This is
forgotten when the master ends. A master that was started anew takes back any run, and so must one
that serves in place of another one.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.layout import Layout
from gradwire_server.state.run import Run

ENDED_RUNS_MAX: Final = 16
"""Runs that are remembered, the oldest giving way. Each takes some 100 bytes for each rank that has
sent anything."""


@dataclass(frozen=True, slots=True)
class _FinishedRun:
    name: str
    layout_digest: bytes
    versions: Mapping[int, int]


class FinishedRuns:
    """Remembers runs that were finished."""

    def __init__(self) -> None:
        self._ended: deque[_FinishedRun] = deque(maxlen=ENDED_RUNS_MAX)

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._ended)

    def note(self, run: Run) -> None:
        """Remember a run that is over, if it was finished."""
        if run.finished:
            versions = dict(run.relay.versions)
            self._ended.append(_FinishedRun(run.name, _digest(run.layout), versions))

    def find(self, join: Join) -> str | None:
        """Return the name of the run that somebody takes part in who is back, if it is over."""
        resume = join.resume
        if resume is None or not self._ended:
            return None
        digest, rank = _digest(join.layout), resume.rank
        # Of its own it forgets what everyone has, and nothing else.
        has = {**resume.versions, rank: resume.kept.get(rank, resume.sequence + 1) - 1}
        for ended in self._ended:
            is_named_so = join.run in (None, ended.name) and ended.layout_digest == digest
            if is_named_so and covers(ended.versions, has):
                return ended.name
        return None

    def clear(self) -> None:
        """Forget all: what was finished here may go on elsewhere."""
        self._ended.clear()


def _digest(layout: Layout) -> bytes:
    return sha256(layout.pack()).digest()
