"""`LogCopy`: what a worker has of the master's log, and what it keeps of it.

Messages overtake each other, and the WELCOME. Entries are taken in the order of the log, so a
position says what a worker has. Its own updates are in the log as well, and are not sent to it:
between two positions that it is sent, the updates that are missing are its own.

A master that is killed has no log any more. So a worker keeps the last part of what it has, until
every worker has that, its own updates in their places.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gradwire.worker.own_updates import OwnUpdates
from gradwire.worker.sums import Sum
from gradwire.worker.update_log import ENTRY_BYTES, UPDATE_LOG_BYTES_MAX
from gradwire_codecs import NOTHING
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import LogName, Place
from gradwire_protocol.messages.fields import covers, raise_to
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_protocol.messages.updates import Entries, EntriesAssembly, Span, Stable


class NotKeptError(Exception):
    """An own update that is not kept any more has to be subtracted, or to be sent again."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Entries that were taken, or an own update."""

    start: int
    stop: int
    bodies: Sequence[bytes] = ()
    span: Span | None = None
    """None for an own update."""
    sequence: int = 0
    """That of an own update."""

    @property
    def nbytes(self) -> int:
        """Memory."""
        return ENTRY_BYTES + sum(map(len, self.bodies))

    @property
    def closes(self) -> bool:
        """Whether a result ends in it."""
        return self.span is not None and bool(self.span.closes)


@dataclass(slots=True)
class _Copy:
    """What a replica has, and what is kept of that."""

    log: LogName
    position: int
    versions: dict[int, int]
    """The updates up to there, our own included."""
    kept: deque[_Kept] = field(default_factory=deque)
    nbytes: int = 0
    """Of what is kept."""


class LogCopy:
    """The log as far as it is here.

    Parameters
    ----------
    elements : int
        Length of the replica.
    bytes_max : int
        What may be kept. Beyond it the oldest entries are dropped, and cannot be sent to a
        restarted master.
    """

    def __init__(self, elements: int, bytes_max: int = UPDATE_LOG_BYTES_MAX) -> None:
        self.results_kept = 0
        """How many of the last results are kept, though all workers have them."""
        self._elements = elements
        self._bytes_max = bytes_max
        self._assembly = EntriesAssembly(elements)
        self._copy = _Copy(LogName(), 0, {})
        self._before: _Copy | None = None
        """What our replica has, while another one is on its way to its place."""

    @property
    def place(self) -> Place:
        """Up to where it is here."""
        return Place(self._copy.log, self._copy.position)

    @property
    def position(self) -> int:
        """Up to where it is here."""
        return self._copy.position

    @property
    def versions(self) -> Mapping[int, int]:
        """By rank: the last update up to there."""
        return self._copy.versions

    @property
    def nbytes(self) -> int:
        """Memory of what is kept."""
        return self._copy.nbytes

    def resize(self, elements: int) -> None:
        """Note how many elements the replica has; before the WELCOME it has at most so many."""
        self._elements = self._assembly.elements = elements

    def begin_with(self, place: Place, versions: Mapping[int, int]) -> None:
        """Begin with a replica that has the log up to a place."""
        self._copy = _Copy(place.log, place.position, dict(versions))

    def change_to(self, place: Place, versions: Mapping[int, int]) -> None:
        """Take what comes after a place, for a replica that will take the place of ours."""
        self._before = self._copy
        self.begin_with(place, versions)

    def continue_in(self, log: LogName) -> None:
        """Note in which log ours goes on: the same, or that of a master that has continued it."""
        self._copy.log = log

    def settle(self) -> None:
        """Note that the replica that was on its way is here."""
        self._before = None

    def start_over(self) -> None:
        """Go back to what our replica has: the connection is lost."""
        if self._before is not None:
            self._copy, self._before = self._before, None
        self._assembly = EntriesAssembly(self._elements)

    # Entries.

    def add(self, received: EntriesReceived) -> None:
        """Take a message; raise `InvalidMessageError` if it does not fit what is here."""
        self._assembly.add(received.entries, received.number)

    def take_next(self, rank: int, own: OwnUpdates) -> tuple[Sum, int] | None:
        """Take the next entries, if they are here.

        Parameters
        ----------
        rank : int
            Ours.
        own : OwnUpdates
            Our updates, to subtract those in a sum.

        Returns
        -------
        tuple or None
            The entries, and the highest number of their messages.

        Raises
        ------
        InvalidMessageError
            If they have what is here already, or updates of ours that we have not made.
        NotKeptError
            If an own update in them is not kept any more: the master has to say by itself what
            others have made.
        """
        copy = self._copy
        stop = self._assembly.after(copy.position)
        if stop is None:
            return None
        span, bodies, number = self._assembly.take(stop)
        skipped = stop - copy.position - span.updates
        versions = copy.versions
        before = {each: versions.get(each, 0) for each in span.after}
        if rank in before:
            before[rank] += skipped
        if skipped < 0 or any(last <= before[each] for each, last in span.after.items()):
            raise InvalidMessageError(
                f"Entries {span.start + 1} to {stop}, up to updates {dict(span.after)}; the log is "
                f"here up to {copy.position}, with {before}"
            )
        accepted = span.after.get(rank, versions.get(rank, 0) + skipped)
        if accepted > own.sequence:
            raise InvalidMessageError(
                f"Entries up to {stop} have our updates up to {accepted}; {own.sequence} were sent"
            )
        mine = []
        if rank in span.after:
            mine = own.between(before[rank] + 1, span.after[rank])
            if len(mine) < span.after[rank] - before[rank]:
                raise NotKeptError
        for each in range(skipped):
            position = copy.position + each
            versions[rank] = versions.get(rank, 0) + 1
            self._keep(_Kept(position, position + 1, sequence=versions[rank]))
        bodies = [body for body in bodies if body]
        self._keep(_Kept(stop - span.updates, stop, bodies, span))
        copy.position = stop
        versions.update(span.after)
        raise_to(versions, span.closes)
        total = Sum(stop, bodies, span, before, mine, rank, versions.get(rank, 0))
        return total, number

    def note_stable(self, stable: Stable, rank: int) -> None:
        """Keep no more what every worker has; `rank` is ours."""
        copy, position = self._copy, stable.position
        if position > copy.position:
            others = {each: last for each, last in stable.versions.items() if each != rank}
            if not covers(copy.versions, others):
                return
            # What is missing up to there are updates of our own.
            copy.position = position
            raise_to(copy.versions, stable.versions)
        if self.results_kept:
            position = min(position, self._before_last_results)
        while copy.kept and copy.kept[0].stop <= position:
            self._forget_oldest()

    # What is kept.

    def kept_after(self, own: OwnUpdates) -> int:
        """Return after which position all is kept."""
        copy, position = self._copy, self._copy.position
        for each in reversed(copy.kept):
            if each.stop < position or (each.span is None and not own.has(each.sequence)):
                break
            position = each.start
        return position

    def messages_after(self, position: int, rank: int, own: OwnUpdates) -> Iterator[Entries]:
        """Yield what is kept after a position, as messages; `rank` is ours.

        Raises
        ------
        NotKeptError
            If an own update there is not kept any more: more were made since `kept_after`.
        """
        for each in self._copy.kept:
            if each.stop <= position:
                continue
            if each.span is None:
                found = own.between(each.sequence, each.sequence)
                if not found:
                    raise NotKeptError
                [update] = found
                sequence, based_on = {rank: each.sequence}, {rank: update.based_on}
                clocks = {rank: update.clock} if update.clock else {}
                paces = {rank: update.pace} if update.pace else {}
                span = Span(each.start, sequence, 1, 1, based_on, clocks, paces)
                yield Entries(each.stop, update.body, span)
                continue
            bodies = each.bodies or [NOTHING]
            for body in bodies[:-1]:
                yield Entries(each.stop, body, None)
            span = replace(each.span, start=each.start, parts=len(bodies))
            yield Entries(each.stop, bodies[-1], span)

    # Private.

    @property
    def _before_last_results(self) -> int:
        """The position before those results that are kept, and before the end of another one.

        So it shows where the first of them begins.
        """
        ends = [each.start for each in self._copy.kept if each.closes]
        return ends[-1 - self.results_kept] if len(ends) > self.results_kept else 0

    def _keep(self, each: _Kept) -> None:
        copy = self._copy
        copy.kept.append(each)
        copy.nbytes += each.nbytes
        while copy.nbytes > self._bytes_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        copy = self._copy
        copy.nbytes -= copy.kept.popleft().nbytes
