"""`SentPackets`: what is noted of a packet is found again, for as long as it is of interest."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_protocol.limits import ACK_RECORDS_MAX, SENT_PACKETS_MAX
from gradwire_protocol.recovery.sent_packets import (
    CAPACITY_MIN,
    REMEMBERED_MAX,
    Fate,
    PacketContents,
    SentPackets,
    SentTrain,
)
from support.tiers import count, examples

SIZE = 1000
SPANS = count(8, quick=3, of="spans of packets that nobody acknowledges")
NEVER = float("-inf")


def batch(now: float = 0.0) -> SentTrain:
    return SentTrain(now, object())


def train(sent: SentPackets, n: int, now: float = 0.0) -> SentTrain:
    """Send the first fragments of message 0."""
    shared = batch(now)
    sent.record_train(range(n), 0, SIZE, SIZE, shared)
    return shared


def bytes_of_columns(sent: SentPackets) -> int:
    return sum(column.nbytes for column in sent._columns())


def settle(sent: SentPackets, first: int, stop: int, fate: int = Fate.ACKED) -> None:
    """Let packets in flight arrive, or get lost, as loss recovery does."""
    fates = sent.fates(first, stop)
    assert (fates == Fate.IN_FLIGHT).all()
    fates[:] = fate
    sent.packets_in_flight -= stop - first
    sent.bytes_in_flight -= int(sent.sizes(slice(first, stop)).sum())
    sent.lost_packets += stop - first if fate == Fate.LOST else 0


# What is forgotten.


def test_a_lost_packet_is_of_interest_until_it_is_old() -> None:
    sent = SentPackets()
    for now in (1.0, 2.0, 3.0):
        train(sent, 2, now)
    settle(sent, 0, 4, Fate.LOST)
    settle(sent, 4, 6)
    lows, waiting = [], []

    for forget_before in (NEVER, 0.9, 1.0, 1.9, 2.0):
        sent.advance(forget_before)
        lows.append(sent.oldest)
        waiting.append(sent.lost_packets)

    assert lows == [0, 0, 2, 2, 6]
    assert waiting == [4, 4, 2, 2, 0]


def test_a_packet_in_flight_is_of_interest_however_old_it_is() -> None:
    sent = SentPackets()
    train(sent, 2, now=1.0)
    train(sent, 2, now=9.0)
    settle(sent, 2, 4, Fate.LOST)

    sent.advance(8.0)

    assert (sent.oldest, sent.lost_packets) == (0, 2)


def test_there_is_room_for_a_train_as_long_as_few_enough_are_unaccounted_for() -> None:
    sent = SentPackets()
    rooms = []
    while sent.next_number < SENT_PACKETS_MAX:
        rooms.append(sent.has_room)
        train(sent, 2**12)
    rooms.append(sent.has_room)
    settle(sent, 0, 1)
    sent.advance(NEVER)
    rooms.append(sent.has_room)

    assert rooms == [True] * (SENT_PACKETS_MAX >> 12) + [False, True]


@pytest.mark.parametrize("fate", [Fate.ACKED, Fate.LOST])
def test_contents_that_nobody_asks_for_any_more_are_few(fate: int) -> None:
    """A sender of small messages hardly ever sends anything else that would clear them away."""
    sent = SentPackets()
    for number in range(10 * ACK_RECORDS_MAX):
        sent.record_packet(
            100, batch(number), PacketContents(fragments=[(number, 0)]), eliciting=True
        )
        settle(sent, number, number + 1, fate)
        sent.advance(number - 3.0)

    assert len(sent.contents) <= ACK_RECORDS_MAX + 4
    assert max(sent.contents) == sent.next_number - 1


def test_contents_of_a_packet_in_flight_are_kept_however_many_there_are() -> None:
    sent = SentPackets()
    for _ in range(3 * ACK_RECORDS_MAX):
        sent.record_packet(100, batch(), PacketContents(credit=True), eliciting=True)
        sent.record_packet(100, batch(), PacketContents(ack_largest=1), eliciting=False)
    sent.advance(NEVER)

    eliciting = [number for number, contents in sent.contents.items() if contents.credit]
    assert eliciting == [*range(0, 6 * ACK_RECORDS_MAX, 2)]


def test_of_packets_that_nobody_has_to_acknowledge_only_the_newest_are_remembered() -> None:
    sent = SentPackets()
    train(sent, 1)
    for _ in range(3 * ACK_RECORDS_MAX):
        sent.record_packet(100, batch(), PacketContents(ack_largest=1), eliciting=False)
        sent.record_packet(100, batch(), None, eliciting=False)

    assert len(sent.contents) == ACK_RECORDS_MAX
    assert max(sent.contents) == sent.next_number - 2


def test_a_peer_that_never_acknowledges_anything_does_not_make_the_columns_grow() -> None:
    """It keeps us answering; what it does not acknowledge is given up some time."""
    sent = SentPackets()
    train(sent, 2)
    train(sent, 2)
    settle(sent, 0, 1, Fate.LOST)
    shared = batch()
    capacities = set()
    for _ in range(SPANS * SENT_PACKETS_MAX // 2**10):
        sent.record_packet(100, shared, PacketContents(credit=True), eliciting=True)
        for _ in range(2**10 - 2):
            sent.record_packet(100, shared, None, eliciting=False)
        sent.skip_number()
        capacities.add(bytes_of_columns(sent))

    assert max(capacities) <= 31 * 4 * SENT_PACKETS_MAX
    assert sent.next_number - sent.oldest <= 4 * SENT_PACKETS_MAX
    assert REMEMBERED_MAX > SENT_PACKETS_MAX, "an honest peer is never given up"
    fates = sent.fates(sent.oldest, sent.next_number)
    assert sent.packets_in_flight == np.count_nonzero(fates == Fate.IN_FLIGHT)
    assert sent.bytes_in_flight == 100 * sent.packets_in_flight
    assert sent.lost_packets == 0
    assert sent.train_of(sent.next_number - 2**10) is shared


# The columns slide and grow.


@dataclass(slots=True)
class Note:
    """What is known of one packet, kept the simple way."""

    fate: int
    size: int
    fragment: tuple[int, int] | None
    batch: SentTrain | None


@dataclass(slots=True)
class Notebook:
    """`SentPackets`, and the same in a dict."""

    sent: SentPackets = field(default_factory=SentPackets)
    notes: dict[int, Note] = field(default_factory=dict)

    def train(self, n: int, now: float) -> None:
        """Send a train of a message of its own."""
        number = self.sent.next_number
        shared = batch(now)
        self.sent.record_train(range(5, 5 + n), number, SIZE, 7, shared)
        for i in range(n):
            size = SIZE if i < n - 1 else 7
            self.notes[number + i] = Note(Fate.IN_FLIGHT, size, (number, 5 + i), shared)

    def single(self, now: float, *, eliciting: bool) -> None:
        shared = batch(now)
        fate = Fate.IN_FLIGHT if eliciting else Fate.UNASKED
        number = self.sent.next_number
        self.notes[number] = Note(fate, 99, None, shared if eliciting else None)
        self.sent.record_packet(99, shared, None, eliciting=eliciting)

    def settle(self, first: int, stop: int, fate: int) -> None:
        """Account for packets, as far as they are in flight."""
        for number in range(first, stop):
            if self.notes[number].fate == Fate.IN_FLIGHT:
                settle(self.sent, number, number + 1, fate)
                self.notes[number].fate = fate

    def check(self) -> None:
        sent = self.sent
        kept = {n: note for n, note in self.notes.items() if n >= sent.oldest}
        assert sent.fates(sent.oldest, sent.next_number).tolist() == [n.fate for n in kept.values()]
        flying = [note.size for note in kept.values() if note.fate == Fate.IN_FLIGHT]
        assert (sent.packets_in_flight, sent.bytes_in_flight) == (len(flying), sum(flying))
        keys, indexes = sent.fragments(slice(sent.oldest, sent.next_number))
        for (number, note), key, index in zip(kept.items(), keys, indexes, strict=True):
            if note.fragment is not None:
                assert (key, index) == note.fragment
            if note.fate in (Fate.IN_FLIGHT, Fate.LOST):
                assert sent.sizes(np.array([number])).tolist() == [note.size]
                assert sent.train_of(number) is note.batch


ACTIONS = st.one_of(
    st.tuples(st.just("train"), st.integers(1, 300), st.just(0.0)),
    st.tuples(st.sampled_from(["asks", "says", "skip"]), st.just(1), st.just(0.0)),
    st.tuples(st.sampled_from(["acked", "lost"]), st.integers(1, 600), st.floats(0.0, 1.0)),
)


@settings(max_examples=examples(100))
@given(actions=st.lists(ACTIONS, min_size=10, max_size=40))
def test_columns_slide_and_grow_and_no_packet_of_interest_changes(
    actions: list[tuple[str, int, float]],
) -> None:
    """Trains of many sizes; what is accounted for is the oldest, or any run in between."""
    book = Notebook()
    for now, (action, n, where) in enumerate(actions):
        sent = book.sent
        if action == "train":
            book.train(n, now)
        elif action == "skip":
            book.notes[sent.next_number] = Note(Fate.SKIPPED, 0, None, None)
            sent.skip_number()
        elif action in ("asks", "says"):
            book.single(now, eliciting=action == "asks")
        else:
            first = sent.oldest + int(where * where * (sent.next_number - sent.oldest))
            stop = min(first + n, sent.next_number)
            book.settle(first, stop, Fate.ACKED if action == "acked" else Fate.LOST)
            sent.advance(NEVER if where < 0.5 else now - 10.0)
        book.check()


def test_columns_do_not_grow_while_packets_are_accounted_for() -> None:
    sent = SentPackets()
    for _ in range(1000):
        first = sent.next_number
        train(sent, 60)
        settle(sent, first, first + 60)
        sent.advance(NEVER)

    assert bytes_of_columns(sent) == 27 * CAPACITY_MIN
