"""`Segment`: what the log has between two positions: one update as it came, or a sum of several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gradwire_codecs import NOTHING, Update, decode
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merging import merge
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.updates import PART_HITS, Conflated, EncodedUpdate, Span

ENTRY_BYTES: Final = 2_048
"""Memory that an update takes besides its payload. Measured: 1.6 KB for 26 bytes."""

HIT_BYTES: Final = 8
"""Position and count."""


class Segment:
    """The updates after one position, up to another one.

    Attributes
    ----------
    start, stop : int
        Positions: it has the updates `start` + 1 to `stop`.
    before, after : mapping
        By rank of those that it has updates of, the sequence before the first and of the last.
    message : ShapedMessage or None
        One update as it came; None in a sum.
    based_on : mapping
        By rank, what its last update was based on.
    clocks, paces : mapping
        By rank, the step counter and the pace in the last update that has one.
    closes : mapping
        In rounds, by rank: the last contributed update that is in the replica with it.
    accepted_at : float
        When the first one was accepted.
    """

    __slots__ = (
        "_decoded",
        "accepted_at",
        "after",
        "based_on",
        "before",
        "clocks",
        "closes",
        "message",
        "nbytes",
        "paces",
        "shared",
        "start",
        "stop",
    )

    def __init__(
        self,
        start: int,
        stop: int,
        before: Mapping[int, int],
        after: Mapping[int, int],
        *,
        accepted_at: float,
        message: ShapedMessage | None = None,
        decoded: Update | None = None,
    ) -> None:
        self.start = start
        self.stop = stop
        self.before = before
        self.after = after
        self.accepted_at = accepted_at
        self.message = message
        self._decoded = decoded
        self.based_on: Mapping[int, int] = {}
        self.clocks: Mapping[int, int] = {}
        self.paces: Mapping[int, int] = {}
        self.closes: Mapping[int, int] = {}
        self.shared: ShapedMessage | None = None
        """A sum as the message that all who are sent it share, once it was made."""
        size = 0
        if message is not None:
            size = message.total
        elif decoded is not None:
            size = HIT_BYTES * decoded.hits
        self.nbytes = size + ENTRY_BYTES
        """Memory."""

    @classmethod
    def of(
        cls,
        position: int,
        rank: int,
        encoded: EncodedUpdate,
        message: ShapedMessage,
        decoded: Update | None,
        now: float,
    ) -> "Segment":
        """Return the one for the update at a position."""
        sequence = encoded.sequence
        segment = cls(
            position - 1,
            position,
            {rank: sequence - 1},
            {rank: sequence},
            accepted_at=now,
            message=message,
            decoded=decoded,
        )
        segment.based_on = {rank: encoded.based_on}
        segment.closes = encoded.closes
        if encoded.clock:
            segment.clocks = {rank: encoded.clock}
        if encoded.pace:
            segment.paces = {rank: encoded.pace}
        return segment

    @classmethod
    def merged(cls, parts: Sequence["Segment"], elements: int) -> "Segment | None":
        """Return several as one; None where an element leaves the range of 32 bits.

        It begins where the first one does and ends where the last one does.
        """
        total = merge([part.decoded(elements) for part in parts], elements)
        if total is None:
            return None
        before: dict[int, int] = {}
        after: dict[int, int] = {}
        based_on: dict[int, int] = {}
        clocks: dict[int, int] = {}
        paces: dict[int, int] = {}
        closes: dict[int, int] = {}
        for part in parts:
            for rank, sequence in part.before.items():
                before.setdefault(rank, sequence)
            after.update(part.after)
            based_on.update(part.based_on)
            clocks.update(part.clocks)
            paces.update(part.paces)
            raise_to(closes, part.closes)
        first, last = parts[0], parts[-1]
        segment = cls(
            first.start, last.stop, before, after, accepted_at=first.accepted_at, decoded=total
        )
        segment.based_on, segment.clocks, segment.paces = based_on, clocks, paces
        segment.closes = closes
        return segment

    @property
    def updates(self) -> int:
        """How many updates it has."""
        return self.updates_without(-1)

    def updates_without(self, rank: int) -> int:
        """Return how many updates it has of other ranks."""
        counts = {each: last - self.before[each] for each, last in self.after.items()}
        return sum(counts.values()) - counts.get(rank, 0)

    def decoded(self, elements: int) -> Update:
        """Return what it changes."""
        if self._decoded is None:
            assert self.message is not None
            body = EncodedUpdate.parse(self.message.payload).body
            self._decoded = decode(body, elements)
        return self._decoded

    def forget_decoded(self) -> None:
        """Keep an update only as it came."""
        if self.message is not None:
            self._decoded = None

    @property
    def is_whole(self) -> bool:
        """Whether one message carries it."""
        return self.message is not None or (
            self._decoded is not None and self._decoded.hits <= PART_HITS
        )

    def parts(self, before: Mapping[int, int]) -> Iterator[Conflated]:
        """Yield the messages of a sum, each made when it is asked for.

        Parameters
        ----------
        before : mapping
            All updates before the first one in it, of all ranks.
        """
        assert self._decoded is not None, "a single update is sent as it came"
        total = self._decoded
        count = max(-(-total.hits // PART_HITS), 1)
        for number in range(count):
            span = None
            if number == count - 1:
                span = Span(
                    before,
                    self.after,
                    self.updates,
                    count,
                    self.based_on,
                    self.clocks,
                    self.paces,
                    self.closes,
                )
            yield Conflated(self.stop, _packed_part(total, number), span)


def _packed_part(total: Update, number: int) -> bytes:
    """Return one part of a sum, encoded."""
    first = PART_HITS * number
    index = total.index[first : first + PART_HITS]
    if not index.size:
        return NOTHING
    count = total.count[first : first + PART_HITS]
    start, stop = int(index[0]), int(index[-1]) + 1
    return pack_update(Update(start, stop, total.multiple, index, count))
