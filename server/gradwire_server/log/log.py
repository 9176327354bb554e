"""`Log`: the accepted updates in the order of their acceptance.

::

    position    0        …       412       413       414       415  head
                ├─ dropped ─┼─ one segment ─┼─ update ─┼─ update ─┤
    cursors                 ▲ a slow member            ▲ most members

A *position* counts accepted updates. The shared parameters at position p are the first ones and all
updates up to p, so a position says all about a replica. A member has a *cursor*: the position up to
which it was sent the log, and what is under way. Nothing else is kept for it.

When a member can take more, it is sent what lies between its cursor and the head: one update as it
came, or several as one sum. So updates are merged where the master or a link is busy, and nowhere
else. A sum is made once for all members whose cursors are equal. Therefore it has the updates of
its receivers, too: each subtracts its own, which it keeps until they are stable. Where there are
sums of a part of it, it is made of these.

Between two neighbouring cursors nobody needs what is in between. When the log takes more memory
than it may, such updates become one segment: at most one more than there are cursors, and each at
most as large as the model. So memory follows from how many members are slow, not from for how long.
What all have acknowledged is kept while there is room, for workers that come back.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, takewhile
from typing import Final

from gradwire_codecs import Update
from gradwire_protocol.messages.admission import LogName, Place
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.updates import EncodedUpdate, Stable
from gradwire_server.log.cursor import Cursor
from gradwire_server.log.segments import Segment
from gradwire_server.log.sums import Sums

SUMMED_MIN: Final = 8
"""So many updates or more are added up for those that are behind, while they are decoded: a sum for
one that lacks a hundred of them is then made of ten."""

MERGED_BYTES_MAX: Final = 2**21
"""Updates that are decoded and merged at a time, in 50 ms: nobody is served meanwhile."""


class Log:
    """Accepted updates, and the cursors of members.

    Parameters
    ----------
    elements : int
        Length of the vector.
    bytes_max : int
        Memory from which on the oldest segments are dropped, and others merged.
    """

    def __init__(self, elements: int, bytes_max: int) -> None:
        self.elements = elements
        self.bytes_max = bytes_max
        self.runs: Callable[[], int] = lambda: 1
        """Returns the number of runs that share `bytes_max`."""
        self.head = 0
        """Position of the last update."""
        self.nbytes = 0
        """Memory of all segments."""
        self.name = LogName(0)
        self.versions: dict[int, int] = {}
        """By rank, the last update at the head."""
        self.reported: Callable[[], Iterable[int]] = lambda: ()
        """Returns the positions up to which others say that all have it whom they send it."""
        self._stable: dict[int, int] = {}
        """What was stable when it was last asked."""
        self._stable_at = 0
        """The position of that."""
        self._segments: deque[Segment] = deque()
        self._cursors: dict[Cursor, Callable[[], bool]] = {}
        """With each, whether it counts."""
        self._fresh: list[Segment] = []
        """Those that were added last, decoded: they are not part of a sum for those behind yet."""
        self._sums = Sums()
        self._later: dict[int, list[Segment]] = {}
        """By position: the segments after it, as far as that was asked since then."""
        self._merges_at = bytes_max

    def __iter__(self) -> Iterator[Segment]:
        """Iterate over the segments, in order."""
        return iter(self._segments)

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    # Cursors.

    def subscribe(
        self,
        rank: int,
        now: float,
        position: int | None = None,
        *,
        counts: Callable[[], bool] = lambda: True,
        pauses: bool = False,
        told: int | None = None,
    ) -> Cursor:
        """Return a cursor for a member that has everything up to a position, usually the head.

        `counts` returns whether what it lacks is not stable. A member that `pauses` is sent no sum
        across what is the head now. `told` is where the last message to it ended, if it was sent
        the log from elsewhere.
        """
        pause = self.head if pauses else 0
        cursor = Cursor(rank, self.head if position is None else position, now, pause, told)
        self._cursors[cursor] = counts
        return cursor

    def unsubscribe(self, cursor: Cursor) -> None:
        """Forget a member that has left."""
        self._cursors.pop(cursor, None)

    # Updates.

    def start_from(
        self,
        place: Place,
        versions: Mapping[int, int],
        segments: Sequence[Segment] = (),
        stable: Stable | None = None,
    ) -> None:
        """Begin with a replica.

        Parameters
        ----------
        place : Place
            The position that the replica has, and the name of the log.
        versions : mapping
            By rank, the last update in it.
        segments : sequence of Segment
            The last ones before that position.
        stable : Stable, optional
            What all have; without it, all of that.
        """
        self.name, self.head = place.log, place.position
        self.versions = dict(versions)
        self._segments = deque(segments)
        self._later.clear()
        self._sums.clear()
        self.nbytes = sum(segment.nbytes for segment in segments)
        stable = stable or Stable(place.position, versions)
        self._stable, self._stable_at = dict(stable.versions), stable.position

    @property
    def place(self) -> Place:
        """The last position."""
        return Place(self.name, self.head)

    def has_after(self, place: Place) -> bool:
        """Return whether all is here that comes after a place."""
        position = place.position
        if not self.name.shares(place.log, position) or position > self.head:
            return False
        return self.divides_at(position)

    def skip_to(self, rank: int, sequence: int) -> None:
        """Skip lost updates of a rank, up to this one."""
        self.versions[rank] = self._stable[rank] = sequence

    def accept(
        self, rank: int, encoded: EncodedUpdate, decoded: Update | None, now: float
    ) -> Segment:
        """Write down the next accepted update; return it."""
        segment = Segment.of(self.head + 1, rank, encoded, decoded, now)
        self.append(segment)
        return segment

    def append(self, segment: Segment) -> None:
        """Write down the next segment."""
        assert segment.start == self.head
        self.head = segment.stop
        self.versions.update(segment.after)
        self._segments.append(segment)
        self.nbytes += segment.nbytes
        self._fresh.append(segment)
        self._later.clear()
        self._drop()

    def compact(self, *, at_once: bool = False) -> None:
        """Drop what all have, then merge what lies between cursors, where memory is short.

        It merges a part of that, unless all has to be merged `at_once`; and when all is merged, it
        waits until there is half as much again.
        """
        self._drop()
        if at_once and self.nbytes > self.limit:
            self._merge(math.inf)
        elif self.nbytes > max(self.limit, self._merges_at):
            self._merge(MERGED_BYTES_MAX)

    def next_of(self, cursor: Cursor, *, singly_bytes: float = 0) -> Segment | None:
        """Return what a member is to be sent next.

        None where it lacks nothing but updates of its own: then it counts as having these. If what
        it lacks takes no more than `singly_bytes`, it gets each update by itself, as far as these
        were not merged.
        """
        if cursor.sent < cursor.pause:
            lacking = [each for each in self._after(cursor.sent) if each.stop <= cursor.pause]
        else:
            lacking = self._after(cursor.sent)
        others = [each for each in lacking if each.counts.keys() != {cursor.rank}]
        if not others:
            cursor.sent = lacking[-1].stop if lacking else self.head
            return (
                self.next_of(cursor, singly_bytes=singly_bytes) if cursor.sent < self.head else None
            )
        if len(others) == 1 or (
            singly_bytes and sum(each.nbytes for each in others) <= singly_bytes
        ):
            return others[0]
        return self._sum_of(lacking)

    def end_pass(self) -> None:
        """Note that members were served.

        What is fresh is added up for those that are behind.
        """
        behind = min((cursor.sent for cursor in self._cursors), default=self.head)
        is_much = sum(segment.decoded_bytes for segment in self._fresh) > self.limit // 4
        if behind == self.head or is_much or len(self._fresh) >= SUMMED_MIN:
            if behind < self.head:
                self._sum_of(self._fresh)
            for segment in self._fresh:
                segment.forget_decoded()
            self._fresh.clear()
        self._sums.forget(behind, self.limit // 2)

    @property
    def stable(self) -> Stable:
        """What all have who count; in rounds, of contributions as well.

        An update stays stable when a member comes that lacks it. As long as one does, the position
        is 0: it must not be taken for one that all have.
        """
        counted = (each.acknowledged for each, counts in self._cursors.items() if counts())
        position = min(chain(counted, self.reported()), default=self.head)
        for segment in self._after(self._stable_at):
            if segment.stop > position:
                # What others report may lie in a sum, of which no part can be told.
                position = min(position, segment.start)
                break
            raise_to(self._stable, segment.after)
            raise_to(self._stable, segment.closes)
        self._stable_at = max(self._stable_at, position)
        return Stable(position if position == self._stable_at else 0, dict(self._stable))

    @property
    def limit(self) -> int:
        """Memory from which on segments are dropped or merged."""
        return self.bytes_max // max(self.runs(), 1)

    def others_after(self, position: int, rank: int) -> list[Segment]:
        """Return the segments after a position that have updates of other ranks than this one."""
        return [each for each in self._after(position) if each.counts.keys() != {rank}]

    def count_after(self, position: int, rank: int) -> int:
        """Return how many updates of others a member of this rank lacks after a position."""
        return sum(segment.updates_without(rank) for segment in self._after(position))

    def oldest_after(self, position: int, rank: int) -> float | None:
        """Return when the oldest of these was accepted; None without any."""
        for segment in self.others_after(position, rank):
            return segment.accepted_at
        return None

    def divides_at(self, position: int) -> bool:
        """Return whether one can be sent the log from a position on."""
        return position == self.head or any(each.start == position for each in self._segments)

    # Private.

    def _after(self, position: int) -> list[Segment]:
        """Return the segments after a position, in order; the list must not be changed."""
        found = self._later.get(position)
        if found is None:
            later = takewhile(lambda each: each.stop > position, reversed(self._segments))
            found = self._later[position] = list(later)[::-1]
        return found

    def _sum_of(self, parts: list[Segment]) -> Segment:
        """Return segments as one, or as many of the first ones as have a sum."""
        while len(parts) > 1:
            found = self._sums.find(parts[0].start, parts[-1].stop)
            if found is None:
                found = Segment.merged(self._sums.shorten(parts), self.elements)
            if found is not None:
                self._sums.add(found)
                return found
            parts = parts[: len(parts) // 2]
        return parts[0]

    def _drop(self) -> None:
        """Drop what all have, where memory is short."""
        if self.nbytes <= self.limit:
            return
        held = (cursor.acknowledged for cursor in self._cursors)
        needed = min(chain(held, self.reported()), default=self.head)
        if self._segments[0].stop <= needed:
            _ = self.stable  # it is told by the segments
        while self.nbytes > self.limit and self._segments and self._segments[0].stop <= needed:
            segment = self._segments.popleft()
            self.nbytes -= segment.nbytes
            self._later.clear()

    def _merge(self, bytes_max: float) -> None:
        """Merge what lies between two cursors, the first updates that take so many bytes."""
        positions = {position for cursor in self._cursors for position in cursor.positions}
        # What others report is stable when it is the whole of a segment, which must not grow.
        for reported in self.reported():
            positions |= {next((s.stop for s in self._segments if s.stop >= reported), self.head)}
        kept: deque[Segment] = deque()
        run: list[Segment] = []
        for segment in self._segments:
            if run and segment.body is not None:
                bytes_max -= segment.nbytes
            run.append(segment)
            if segment.stop in positions or segment.stop == self.head or bytes_max <= 0:
                kept.extend(self._merged(run))
                run = []
        self._segments = kept
        self._later.clear()
        self._sums.clear()  # they may end where no segment does
        self.nbytes = sum(segment.nbytes for segment in kept)
        self._merges_at = self.nbytes + self.limit // 2 if bytes_max > 0 else 0

    def _merged(self, run: list[Segment]) -> list[Segment]:
        """Return segments as few: as one, unless an element overflows."""
        merged = []
        while run:
            merged.append(self._sum_of(run))
            run = [each for each in run if each.start >= merged[-1].stop]
        return merged
