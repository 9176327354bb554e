"""`Batch`: updates of peers that wait to be sent to the parent as one.

One sum is under way at a time. While it is, updates wait for the next one: so the busier the parent
is, the more are in each. They are kept until the parent has taken their sum. If it does not, since
a peer has come back to it another way, the sum is made once more of those that are left.

A relay that is a peer sends such sums, too. Each is in a sum of this relay as a whole, and is
answered when the parent has answered that one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradwire_codecs import NOTHING, Update
from gradwire_codecs.format.update import split_update
from gradwire_codecs.replica.merged_sum import merge
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.masters.relaying import (
    BASED_ON_MAX,
    MERGED_BYTES_MAX,
    MERGED_UPDATES_MAX,
    Merged,
    PeerSpan,
    Taken,
)
from gradwire_protocol.messages.updates import EncodedUpdate


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An update of a peer, or the sum of a relay that is one."""

    spans: Sequence[PeerSpan]
    """What is in it: one span of each rank, with the number of the peer at its relay."""
    updates: Sequence[Update]
    count: int
    """How many updates of workers it is."""
    based_on: int
    """Total over them: how many updates of others the parameters contained."""
    clocks: Mapping[int, int]
    source: object = None
    """The relay whose sum it is; None where it is an update of a peer of this one."""
    answer: Callable[[bool, Mapping[int, int]], None] | None = None
    """Called with `done` and `accepted`, as in TAKEN, if it is a sum."""

    @classmethod
    def of(cls, peer: int, rank: int, encoded: EncodedUpdate, update: Update) -> "Entry":
        """Return an update of a peer of this relay."""
        span = PeerSpan(peer, rank, encoded.sequence - 1, encoded.sequence)
        return cls((span,), (update,), 1, encoded.based_on, encoded.clocks_of(rank))


@dataclass(slots=True)
class Holder:
    """The peer to which a rank was given last."""

    peer: int
    """Its number here."""
    accepted: int
    """The last of its updates that the parent has, as far as is known here."""
    source: object
    """The relay that it is behind, if it is not a peer of this one."""
    number: int
    """Its number there; else its number here."""

    def has_sent(self, entry: Entry, span: PeerSpan) -> bool:
        """Return whether these updates are of this peer."""
        return self.source is entry.source and self.number == span.peer


class Batch:
    """Updates of peers.

    Parameters
    ----------
    merge_seconds : float
        Least time from one sum to the next one.
    on_gap : callable
        Called with the number of a peer of which an update is missing here for good: it has to come
        back, and to send that again.
    """

    def __init__(self, merge_seconds: float, on_gap: Callable[[int], None]) -> None:
        self._elements = 0
        self._merge_seconds = merge_seconds
        self._on_gap = on_gap
        self._holders: dict[int, Holder] = {}
        """By rank."""
        self._waiting: list[Entry] = []
        self._under_way: list[Entry] = []
        self._number = 0
        self._sent_at = float("-inf")

    def __len__(self) -> int:
        """Return how many updates and sums the parent has not taken."""
        return len(self._waiting) + len(self._under_way)

    def restart(self, elements: int) -> None:
        """Begin with another run, of a vector of so many elements: drop the updates that wait.

        A sum that is under way is still answered; nothing of it is in that run.
        """
        self._elements = elements
        self._holders.clear()
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            self._refuse(entry, {})

    def end(self) -> None:
        """Give back all sums of relays: nothing is merged any more."""
        entries = [*self._under_way, *self._waiting]
        self._under_way, self._waiting = [], []
        self._holders.clear()
        for entry in entries:
            self._refuse(entry, {})

    def give_rank(
        self, rank: int, peer: int, accepted: int, behind: tuple[object, int] | None = None
    ) -> None:
        """Note which peer has a rank now: updates of an earlier one count no more.

        Parameters
        ----------
        accepted : int
            The last of its updates that the parent has.
        behind : tuple, optional
            The relay that it is behind, if it is not a peer of this one, and its number there.
        """
        source, number = behind or (None, peer)
        self._holders[rank] = Holder(peer, accepted, source, number)

    def add(self, entry: Entry) -> None:
        """Add the next update of a rank, or the next sum of a relay."""
        self._waiting.append(entry)

    @property
    def due(self) -> float | None:
        """When a sum is to be sent; None while one is under way, and where there is nothing."""
        if self._under_way or not self._waiting:
            return None
        return self._sent_at + self._merge_seconds

    def next_sum(self, now: float) -> list[Merged]:
        """Return the messages with the sum of all that waits, if it is due."""
        due = self.due
        if due is None or now < due:
            return []
        self._under_way = entries = self._take_what_fits()
        if not entries:
            return []
        self._sent_at = now
        self._number = (self._number + 1) % 2**32
        sums = merge([update for entry in entries for update in entry.updates], self._elements)
        bodies = [body for each in sums for body in split_update(each, MERGED_BYTES_MAX)]
        *bodies, last = bodies or [NOTHING]
        clocks: dict[int, int] = {}
        for entry in entries:
            clocks.update(entry.clocks)
        updates = min(sum(entry.count for entry in entries), MERGED_UPDATES_MAX)
        based_on = min(sum(entry.based_on for entry in entries), BASED_ON_MAX)
        number, count, spans = self._number, len(bodies) + 1, self._spans_of(entries)
        return [
            *(Merged(number, i, count, (), updates, 0, {}, body) for i, body in enumerate(bodies)),
            Merged(number, count - 1, count, spans, updates, based_on, clocks, last),
        ]

    def receive(self, taken: Taken) -> None:
        """Act on the parent's answer.

        Raises `InvalidMessageError` if it is no answer to the sum under way.
        """
        if not self._under_way or taken.number != self._number:
            raise InvalidMessageError(f"Taken {taken.number}, of which nothing is under way")
        entries, self._under_way = self._under_way, []
        for entry in entries:
            for span in entry.spans:
                self._note_answer(entry, span, taken)
            if taken.done and entry.answer is not None:
                entry.answer(True, {})
        if not taken.done:
            self._waiting = [*entries, *self._waiting]

    def _note_answer(self, entry: Entry, span: PeerSpan, taken: Taken) -> None:
        holder = self._holders.get(span.rank)
        if holder is None or not holder.has_sent(entry, span):
            return  # another peer has the rank since
        if taken.done:
            holder.accepted = span.sequence
        elif span.rank in taken.accepted:
            holder.accepted = taken.accepted[span.rank]
        else:
            del self._holders[span.rank]

    def _take_what_fits(self) -> list[Entry]:
        """Return all that waits and continues what the parent has; refuse the rest."""
        entries, self._waiting = self._waiting, []
        accepted = {rank: holder.accepted for rank, holder in self._holders.items()}
        fitting = []
        for entry in entries:
            if all(self._fits(entry, span, accepted) for span in entry.spans):
                accepted |= {span.rank: span.sequence for span in entry.spans}
                fitting.append(entry)
            else:
                self._refuse(entry, accepted)
        return fitting

    def _fits(self, entry: Entry, span: PeerSpan, accepted: Mapping[int, int]) -> bool:
        holder = self._holders.get(span.rank)
        held = holder is not None and holder.has_sent(entry, span)
        return held and accepted[span.rank] == span.after

    def _refuse(self, entry: Entry, accepted: Mapping[int, int]) -> None:
        held = {
            span.rank: holder
            for span in entry.spans
            if (holder := self._holders.get(span.rank)) and holder.has_sent(entry, span)
        }
        if entry.answer is not None:
            entry.answer(False, {rank: accepted[rank] for rank in held})
            return
        for span in entry.spans:
            if span.rank in held and span.after > accepted[span.rank]:
                self._on_gap(span.peer)

    def _spans_of(self, entries: Iterable[Entry]) -> tuple[PeerSpan, ...]:
        """Return what is in these entries, with peers as the parent knows them."""
        spans: dict[int, PeerSpan] = {}
        for entry in entries:
            for span in entry.spans:
                first = spans.get(span.rank, span)
                peer = self._holders[span.rank].peer
                spans[span.rank] = PeerSpan(peer, span.rank, first.after, span.sequence)
        return tuple(spans.values())
