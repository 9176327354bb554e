"""`Sums`: what was added up of a log, for further sums to be made of.

Each member that is behind is sent a sum of its own, and these have most of their updates in common.
So a sum is made of the longest ones that are here, and of single updates where there are none.
"""

from collections.abc import Sequence

from gradwire_server.log.segments import Segment


class Sums:
    """Sums of segments of a log: from each position, the longest one that was made."""

    def __init__(self) -> None:
        self._from: dict[int, Segment] = {}
        """By start."""
        self._nbytes = 0

    def clear(self) -> None:
        """Forget all."""
        self._from.clear()
        self._nbytes = 0

    def find(self, start: int, stop: int) -> Segment | None:
        """Return the sum of what lies between two positions, if it was made."""
        found = self._from.get(start)
        return found if found is not None and found.stop == stop else None

    def add(self, segment: Segment) -> None:
        """Keep a sum, unless there is a longer one."""
        found = self._from.get(segment.start)
        if found is None or found.stop < segment.stop:
            self._from[segment.start] = segment
            self._nbytes += segment.nbytes - (0 if found is None else found.nbytes)

    def shorten(self, parts: Sequence[Segment]) -> list[Segment]:
        """Return consecutive segments with sums in the place of those that have one."""
        pieces: list[Segment] = []
        stop = parts[-1].stop
        for part in parts:
            if pieces and part.start < pieces[-1].stop:
                continue
            found = self._from.get(part.start)
            pieces.append(part if found is None or found.stop > stop else found)
        return pieces

    def forget(self, before: int, bytes_max: int) -> None:
        """Forget those that begin before a position, and the first ones where there are too many.

        Parameters
        ----------
        before : int
            Everybody has what lies before it.
        bytes_max : int
            Memory that may be taken.
        """
        for start in sorted(self._from):
            if start >= before and self._nbytes <= bytes_max:
                return
            self._nbytes -= self._from.pop(start).nbytes
