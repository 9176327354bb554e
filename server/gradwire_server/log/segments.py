"""`Segment`: what the log has between two positions: one update as it came, or a sum of several."""

from collections.abc import Mapping, Sequence
from typing import Final

from gradwire_codecs import NOTHING, MalformedUpdateError, Update, decode
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merging import merge
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.fields import raise_to
from gradwire_protocol.messages.updates import PART_HITS, EncodedUpdate, Entries, Span
from gradwire_server.log.dense_sums import DenseSum

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
    after : mapping
        By rank of those that it has updates of, the sequence of the last.
    counts : mapping
        By rank of those, how many it has.
    body : bytes or None
        One update as it came; None in a sum.
    based_on : mapping
        By rank, what its last update was based on.
    clocks, paces : mapping
        By rank, the step counter and the pace in the last update that has one.
    closes : mapping
        In rounds, by rank: the last contributed update that is in the replica with it.
    accepted_at : float
        When the first one was accepted.
    shared : dict
        By part: the message that all who are sent it share, once it was made.
    """

    __slots__ = (
        "_bodies",
        "_decoded",
        "_dense",
        "accepted_at",
        "after",
        "based_on",
        "body",
        "clocks",
        "closes",
        "counts",
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
        after: Mapping[int, int],
        counts: Mapping[int, int],
        *,
        accepted_at: float,
        body: bytes | None = None,
        decoded: Update | None = None,
    ) -> None:
        self.start = start
        self.stop = stop
        self.after = after
        self.counts = counts
        self.accepted_at = accepted_at
        self.body = body
        self._decoded = decoded
        self.based_on: Mapping[int, int] = {}
        self.clocks: Mapping[int, int] = {}
        self.paces: Mapping[int, int] = {}
        self.closes: Mapping[int, int] = {}
        self.shared: dict[int, ShapedMessage] = {}
        self._bodies: Sequence[bytes] = () if body is None else (body,)
        """What its messages carry; empty in a sum that was made here."""
        self._dense: DenseSum | None = None
        """What a large sum changes, instead of `decoded`."""
        size = 0
        if body is not None:
            size = len(body)
        elif decoded is not None:
            size = HIT_BYTES * decoded.hits
        self.nbytes = size + ENTRY_BYTES
        """Memory."""

    @classmethod
    def of(
        cls, position: int, rank: int, encoded: EncodedUpdate, decoded: Update | None, now: float
    ) -> "Segment":
        """Return the one for the update at a position."""
        segment = cls(
            position - 1,
            position,
            {rank: encoded.sequence},
            {rank: 1},
            accepted_at=now,
            body=encoded.body,
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
    def received(
        cls,
        stop: int,
        span: Span,
        bodies: Sequence[bytes],
        versions: Mapping[int, int],
        elements: int,
        now: float,
    ) -> "Segment":
        """Return what another one had, from its messages.

        Parameters
        ----------
        versions : mapping
            By rank, the last update before it, as far as that is known.

        Raises
        ------
        MalformedUpdateError
            If a body is no valid update of a vector of so many elements, or an element overflows.
        """
        counts = {rank: last - versions.get(rank, last - 1) for rank, last in span.after.items()}
        decoded = [decode(body, elements) for body in bodies if body] or [decode(NOTHING, elements)]
        total = decoded[0] if len(decoded) == 1 else merge(decoded, elements)
        if total is None:
            raise MalformedUpdateError("its parts have an element in common")
        is_single = span.updates == len(bodies) == 1
        segment = cls(
            span.start,
            stop,
            span.after,
            counts,
            accepted_at=now,
            body=bodies[0] if is_single else None,
            decoded=total,
        )
        segment.based_on, segment.closes = span.based_on, span.closes
        segment.clocks, segment.paces = span.clocks, span.paces
        segment._keep([body for body in bodies if body] or [NOTHING])
        return segment

    @classmethod
    def merged(cls, parts: Sequence["Segment"], elements: int) -> "Segment | None":
        """Return several as one; None where an element leaves the range of 32 bits.

        It begins where the first one does and ends where the last one does.
        """
        total = _sum_of(parts, elements)
        if total is None:
            return None
        after: dict[int, int] = {}
        counts: dict[int, int] = {}
        based_on: dict[int, int] = {}
        clocks: dict[int, int] = {}
        paces: dict[int, int] = {}
        closes: dict[int, int] = {}
        for part in parts:
            for rank, count in part.counts.items():
                counts[rank] = counts.get(rank, 0) + count
            after.update(part.after)
            based_on.update(part.based_on)
            clocks.update(part.clocks)
            paces.update(part.paces)
            raise_to(closes, part.closes)
        first, last = parts[0], parts[-1]
        decoded = None if isinstance(total, DenseSum) else total
        segment = cls(
            first.start, last.stop, after, counts, accepted_at=first.accepted_at, decoded=decoded
        )
        segment.based_on, segment.clocks, segment.paces = based_on, clocks, paces
        segment.closes = closes
        if isinstance(total, DenseSum):
            segment._dense = total
            segment.nbytes = total.nbytes + ENTRY_BYTES
        return segment

    @property
    def updates(self) -> int:
        """How many updates it has."""
        return self.stop - self.start

    def updates_without(self, rank: int) -> int:
        """Return how many updates it has of other ranks."""
        return self.updates - self.counts.get(rank, 0)

    def decoded(self, elements: int) -> Update:
        """Return what it changes."""
        if self._decoded is not None:
            return self._decoded
        if self._dense is not None:
            return self._dense.within(0, elements)
        updates = [decode(body, elements) for body in self._bodies]
        total = updates[0] if len(updates) == 1 else merge(updates, elements)
        assert total is not None, "its parts have no element in common"
        return total

    @property
    def decoded_bytes(self) -> int:
        """Memory that it takes besides, as long as it is decoded."""
        if self._decoded is None or not self._bodies:
            return 0
        return HIT_BYTES * self._decoded.hits

    def forget_decoded(self) -> None:
        """Keep only what its messages carry, if that is here."""
        if self._bodies:
            self._decoded = None

    @property
    def parts(self) -> int:
        """How many messages carry it."""
        if self._bodies:
            return len(self._bodies)
        if self._dense is not None:
            return -(-self._dense.elements // PART_HITS)
        assert self._decoded is not None
        return max(-(-self._decoded.hits // PART_HITS), 1)

    def message(self, part: int, start: int) -> Entries:
        """Return one of its messages.

        Parameters
        ----------
        part : int
            Which one; the last one has its span.
        start : int
            Up to where its receiver was sent everything. Between there and the first update in it,
            there are only some of its receiver's.
        """
        parts = self.parts
        if part < parts - 1:
            return Entries(self.stop, self._body_of(part), None)
        span = Span(
            start,
            self.after,
            self.updates,
            parts,
            self.based_on,
            self.clocks,
            self.paces,
            self.closes,
        )
        return Entries(self.stop, self._body_of(part), span)

    # Private.

    def _keep(self, bodies: Sequence[bytes]) -> None:
        """Keep what its messages carry."""
        self._bodies = bodies
        self.nbytes = sum(map(len, bodies)) + ENTRY_BYTES

    def _body_of(self, part: int) -> bytes:
        """Return what one of its messages carries."""
        if self._bodies:
            return self._bodies[part]
        first = PART_HITS * part
        if self._dense is not None:
            last = min(first + PART_HITS, self._dense.elements)
            found = self._dense.within(first, last)
            return pack_update(found) if found.hits else NOTHING
        assert self._decoded is not None
        total = self._decoded
        index = total.index[first : first + PART_HITS]
        if not index.size:
            return NOTHING
        count = total.count[first : first + PART_HITS]
        start, stop = int(index[0]), int(index[-1]) + 1
        return pack_update(Update(start, stop, total.multiple, index, count))


def _sum_of(parts: Sequence[Segment], elements: int) -> "Update | DenseSum | None":
    """Return what segments change; None where an element leaves the range of 32 bits."""
    changes = [part._dense or part.decoded(elements) for part in parts]
    dense = [change for change in changes if isinstance(change, DenseSum)]
    if dense:
        return dense[0].plus([change for change in changes if change is not dense[0]])
    total = merge([change for change in changes if isinstance(change, Update)], elements)
    return None if total is None else DenseSum.of(total, elements) or total
