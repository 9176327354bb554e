"""The log, played by random histories against what a list of all updates says."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import MalformedUpdateError, Update, decode
from gradwire_codecs.arrays import Int64Array
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.admission import LogName, Place
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import EncodedUpdate, Entries, EntriesAssembly, Span, Stable
from gradwire_server.log.cursor import Cursor, Numbers
from gradwire_server.log.log import Log
from gradwire_server.log.segments import ENTRY_BYTES, HIT_BYTES, Segment

ELEMENTS = 100
RANKS = 4
BYTES_MAX = 6 * ENTRY_BYTES
LOG = LogName(1 << 32)


def body_of(seed: int, size: int = 2) -> bytes:
    random = np.random.default_rng(seed)
    index = np.flatnonzero(random.random(ELEMENTS) < 0.1).astype(np.uint32)
    count = random.choice([-size, -1, 1, size], len(index)).astype(np.int32)
    return pack_update(Update(0, ELEMENTS, 3, index, count)) if len(index) else b""


def change_of(body: bytes) -> Int64Array:
    change = np.zeros(ELEMENTS, np.int64)
    if body:
        update = decode(body, ELEMENTS)
        change[update.index] = update.change
    return change


class Receiver:
    """A member: it adds up what it is sent in order, and subtracts what is its own."""

    def __init__(self, world: "World", rank: int, cursor: Cursor) -> None:
        self.world = world
        self.rank = rank
        self.cursor = cursor
        self.told = cursor.sent
        """Where the last entries ended that it was sent."""
        self.values = world.values_at(cursor.sent)
        self.lacking: set[int] = set()
        """Positions of updates that it has not acknowledged."""
        for position in range(cursor.sent + 1, world.log.head + 1):
            self.accepted(position)
        self.under_way: list[ShapedMessage] = []
        self.connection = SimpleNamespace(sender=SimpleNamespace(fragment_bytes=1_200))

    def accepted(self, position: int) -> None:
        """Note that there is one more update: it has its own at once."""
        origin, change = self.world.entries[position - 1]
        if origin == self.rank:
            self.values = self.values + change
        else:
            self.lacking.add(position)

    def send_entries(self, message: ShapedMessage) -> None:
        """Receive entries, as a link sends them."""
        self.under_way.append(message)
        entries = Entries.parse(message.payload)
        self.values = self.values + change_of(entries.body)
        span = entries.span
        if span is None:
            return
        first = entries.stop - span.updates
        assert span.start == self.told, "it is told from where on it lacks something"
        assert self.told <= first
        assert {rank for rank, _ in self.world.entries[self.told : first]} <= {self.rank}
        inside = self.world.entries[first : entries.stop]
        ranks = {rank for rank, _ in inside}
        assert ranks != {self.rank}, "nobody is sent its own alone"
        versions = self.world.versions_at(entries.stop)
        assert span.after == {rank: versions[rank] for rank in ranks}
        assert not first < self.cursor.pause < entries.stop, "a sum across its pause"
        for rank, change in inside:
            if rank == self.rank:
                self.values = self.values - change
        self.told = entries.stop


class World:
    """A log, and what a list of all updates says."""

    def __init__(self) -> None:
        self.log = Log(ELEMENTS, BYTES_MAX)
        self.log.start_from(Place(LOG), {})
        self.numbers = Numbers()
        self.entries: list[tuple[int, Int64Array]] = []
        """Rank and change of the update at each position, from 1 on."""
        self.stable_at = 0
        """The last position that all had who took part then."""
        self.stable = Stable(0, {})
        self.receivers: dict[int, Receiver] = {}
        for rank in range(RANKS):
            self.join(rank)

    def values_at(self, position: int) -> Int64Array:
        return sum((change for _, change in self.entries[:position]), np.zeros(ELEMENTS, np.int64))

    def versions_at(self, position: int) -> dict[int, int]:
        ranks = [rank for rank, _ in self.entries[:position]]
        return {rank: ranks.count(rank) for rank in set(ranks)}

    def join(self, rank: int, position: int | None = None, *, pauses: bool = False) -> None:
        cursor = self.log.subscribe(rank, 0.0, position, pauses=pauses)
        self.receivers[rank] = Receiver(self, rank, cursor)

    def leave(self, rank: int) -> None:
        self.log.unsubscribe(self.receivers.pop(rank).cursor)

    def come_back(self, rank: int, choice: int, *, pauses: bool) -> None:
        """Let a member come back with some position of which the log has all that is later."""
        has = [at for at in range(self.log.head + 1) if self.log.has_after(Place(LOG, at))]
        self.join(rank, has[choice % len(has)], pauses=pauses)

    def append(self, rank: int, seed: int, size: int = 2) -> None:
        body = body_of(seed, size)
        sequence = self.versions_at(len(self.entries)).get(rank, 0) + 1
        self.entries.append((rank, change_of(body)))
        self.log.accept(rank, EncodedUpdate(sequence, 0, body, clock=sequence), None, 0.0)
        for receiver in self.receivers.values():
            receiver.accepted(len(self.entries))

    def send(self, rank: int, *, singly_bytes: float = 0) -> Segment | None:
        receiver = self.receivers[rank]
        segment = self.log.next_of(receiver.cursor, singly_bytes=singly_bytes)
        if segment is not None:
            receiver.cursor.send(segment, cast("Link", receiver), self.numbers)
        return segment

    def send_all(self, rank: int) -> None:
        while self.send(rank):
            pass

    def deliver(self, rank: int, number: int = 0) -> None:
        receiver = self.receivers[rank]
        message = receiver.under_way.pop(number % len(receiver.under_way))
        segment = receiver.cursor.on_delivered(
            message.number, cast("Link", receiver), self.numbers, 0.0
        )
        if segment is not None:
            stops = [Entries.parse(each.payload).stop for each in receiver.under_way]
            assert segment.stop not in stops, "a part of it is still under way"
            receiver.lacking -= set(range(segment.start + 1, segment.stop + 1))

    def deliver_all(self, rank: int) -> None:
        while self.receivers[rank].under_way:
            self.deliver(rank)

    def check(self) -> None:
        log = self.log
        bounds = [segment.start for segment in log] + [log.head]
        assert bounds[1:] == [segment.stop for segment in log]
        assert log.nbytes == sum(segment.nbytes for segment in log)
        assert log.versions == self.versions_at(log.head)
        for receiver in self.receivers.values():
            cursor = receiver.cursor
            assert cursor.acknowledged <= cursor.sent
            assert all(position > cursor.acknowledged for position in receiver.lacking)
            assert bounds[0] <= cursor.acknowledged, "what somebody lacks is there"
            needed = {position for position in cursor.positions if position >= bounds[0]}
            assert needed <= set(bounds), "nothing is merged across a cursor or its pause"
            assert bool(cursor.nbytes) == bool(receiver.under_way)
        self.check_stable()

    def check_stable(self) -> None:
        all_have = min(
            (each.cursor.acknowledged for each in self.receivers.values()), default=self.log.head
        )
        self.stable_at = max(self.stable_at, all_have)
        stable = self.log.stable
        assert stable.versions == self.versions_at(self.stable_at)
        assert covers(stable.versions, self.stable.versions), "what was stable is so for ever"
        assert stable.position == (all_have if all_have == self.stable_at else 0)
        self.stable = stable


ranks = st.integers(0, RANKS - 1)
ops = st.one_of(
    st.tuples(st.just("append"), ranks, st.integers(0, 999), st.none()),
    st.tuples(st.just("send"), ranks, st.booleans(), st.none()),
    st.tuples(st.just("deliver"), ranks, st.integers(0, 5), st.none()),
    st.tuples(st.just("end a pass"), st.just(0), st.none(), st.none()),
    st.tuples(st.just("leave and join"), ranks, st.none(), st.none()),
    st.tuples(st.just("leave and come back"), ranks, st.integers(0, 20), st.booleans()),
)


@pytest.fixture(params=[2, 10**6], ids=["dense", "sparse"])
def early_sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few updates be added up for those that are behind, to sums that are dense or sparse."""
    monkeypatch.setattr("gradwire_server.log.log.SUMMED_MIN", 2)
    monkeypatch.setattr("gradwire_server.log.dense_sums.DENSE_HITS_MIN", request.param)


@pytest.mark.usefixtures("early_sums")
@given(st.lists(ops, max_size=60))
def test_what_a_member_was_sent_is_what_it_lacked(
    history: list[tuple[str, int, int, bool]],
) -> None:
    world = World()
    for what, rank, argument, pauses in history:
        if what == "append":
            world.append(rank, argument)
        elif what == "send":
            world.send(rank, singly_bytes=math.inf if argument else 0)
        elif what == "deliver" and world.receivers[rank].under_way:
            world.deliver(rank, argument)
        elif what == "end a pass":
            world.log.end_pass()
            world.log.compact()
        elif what == "leave and join":
            world.leave(rank)
            world.join(rank)
        elif what == "leave and come back":
            world.leave(rank)
            world.come_back(rank, argument, pauses=pauses)
        world.check()

    for rank, receiver in world.receivers.items():
        world.send_all(rank)
        assert receiver.cursor.sent == world.log.head
        assert receiver.values.tolist() == world.values_at(world.log.head).tolist()
        world.deliver_all(rank)
        assert not receiver.lacking
        assert world.log.count_after(receiver.cursor.acknowledged, receiver.cursor.rank) == 0
        world.check()
    head = world.log.head
    assert world.log.stable == Stable(head, world.versions_at(head))


def test_nothing_is_merged_across_where_a_member_will_be() -> None:
    """It counts as having updates of its own, with what was sent before them."""
    world = World()
    world.log.bytes_max = 1
    world.append(1, 0)
    assert world.send(0) is not None
    world.append(0, 1)
    assert world.send(0) is None
    world.append(1, 2)
    assert world.send(0) is not None
    for rank in (1, 2, 3):
        world.send_all(rank)
        world.deliver_all(rank)
    world.log.compact(at_once=True)

    world.deliver(0)

    assert world.receivers[0].cursor.acknowledged == 2
    world.check()


def test_members_that_are_equally_far_get_the_same_message() -> None:
    world = World()
    for number in range(6):
        world.append(number % 2, number)

    first, second = world.send(2), world.send(3)

    assert first is second
    assert first is not None
    assert (first.updates, first.after) == (6, {0: 3, 1: 3})
    assert first.clocks == {0: 3, 1: 3}
    [shared] = world.receivers[2].under_way
    assert world.receivers[3].under_way == [shared]


@pytest.mark.usefixtures("small_parts")
def test_members_that_are_equally_far_get_the_same_parts() -> None:
    world = World()
    world.append(2, 0)
    for rank in (1, 2, 3):
        world.send(rank)
        world.deliver_all(rank)
    for number in range(6):
        world.append(0, number)

    sent: dict[int, list[ShapedMessage]] = {1: [], 2: [], 3: []}
    for rank in sent:
        world.send(rank)
    while any(world.receivers[rank].under_way for rank in sent):
        for rank, messages in sent.items():
            messages.append(world.receivers[rank].under_way[0])
            world.deliver(rank)

    *first, last = sent[1]
    assert len(first) > 3
    assert [id(each) for each in sent[3]] == [id(each) for each in sent[1]]
    assert [id(each) for each in sent[2][:-1]] == [id(each) for each in first]
    assert sent[2][-1] is not last, "it says that an own update comes before"


def test_a_sum_is_made_of_sums_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten members that are behind cost ten sums, but not ten times all updates."""
    merged = []

    def counting(parts: Sequence[Segment], elements: int) -> Segment | None:
        merged.append(len(parts))
        return merge(parts, elements)

    merge = Segment.merged
    monkeypatch.setattr(Segment, "merged", counting)
    world = World()
    world.log.bytes_max = 10**9
    for number in range(40):
        world.append(0, number)
        if number % 10 == 9:
            world.log.end_pass()

    world.send_all(1)

    assert merged == [10, 10, 10, 10, 4]


def test_what_is_decoded_for_those_that_are_behind_is_bounded() -> None:
    world = World()
    log = world.log
    log.bytes_max = 4 * 30 * HIT_BYTES  # of which a quarter, thirty hits, may be decoded
    taken = []
    for number in range(20):
        body = body_of(number)
        log.accept(0, EncodedUpdate(number + 1, 0, body), decode(body, ELEMENTS), 0.0)
        log.end_pass()
        taken.append(sum(segment.decoded_bytes for segment in log))

    assert max(taken) > 0
    assert max(taken) <= 30 * HIT_BYTES


def test_the_numbers_of_what_a_member_is_sent_rise() -> None:
    """Else the transport would take one for a message that has come."""
    world = World()
    for number in range(6):
        world.append(number % 2, number)
        for rank in (2, 3):
            if number % (1 + rank) == 1:
                world.send(rank)
    for rank in (2, 3):
        world.send_all(rank)

        numbers = [message.number for message in world.receivers[rank].under_way]
        assert len(numbers) > 1
        assert numbers == sorted(set(numbers))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every sum take several messages, and few be under way."""
    monkeypatch.setattr("gradwire_server.log.segments.PART_HITS", 2)
    monkeypatch.setattr("gradwire_server.log.cursor.PARTS_UNDER_WAY_MAX", 3)


@pytest.mark.usefixtures("small_parts")
def test_a_large_sum_goes_in_parts_and_is_acknowledged_with_the_last_one() -> None:
    world = World()
    for number in range(8):
        world.append(number % 2, number)
    receiver = world.receivers[2]

    world.send(2)

    assert len(receiver.under_way) == 3
    while receiver.cursor.is_sending:
        assert receiver.cursor.acknowledged == 0
        world.deliver(2)
    world.deliver_all(2)
    assert receiver.cursor.acknowledged == world.log.head
    assert receiver.values.tolist() == world.values_at(8).tolist()


@pytest.mark.usefixtures("small_parts")
def test_what_follows_a_large_sum_is_sent_after_its_last_part() -> None:
    """Its receiver takes entries in order; what is early waits there, and takes memory."""
    world = World()
    stops = []
    for updates in (4, 4, 1):  # two sums, and one update as it came
        for number in range(updates):
            world.append(number % 2, number)
        segment = world.send(2)
        assert segment is not None
        stops.append(segment.stop)

    order = []
    while world.receivers[2].under_way:
        order.append(Entries.parse(world.receivers[2].under_way[0].payload).stop)
        world.deliver(2)

    assert order == sorted(order)
    assert set(order) == set(stops) == {4, 8, 9}
    assert world.receivers[2].cursor.acknowledged == world.log.head
    assert world.receivers[2].values.tolist() == world.values_at(9).tolist()


def test_a_member_that_pauses_is_sent_no_sum_across_its_pause() -> None:
    world = World()
    world.leave(3)
    for number in range(4):
        world.append(0, number)
    world.join(3, 1, pauses=True)
    for number in range(4):
        world.append(0, number)

    world.log.bytes_max = 0
    world.log.compact(at_once=True)

    assert [segment.stop for segment in world.log] == [1, 4, 8]
    world.send_all(3)
    stops = [Entries.parse(each.payload).stop for each in world.receivers[3].under_way]
    assert stops == [4, 8]


def test_memory_follows_from_how_many_are_slow_and_not_from_for_how_long() -> None:
    world = World()
    for number in range(500):
        world.append(0, number)
        world.send(1)
        world.deliver(1)
        if number == 250:
            world.send(2)
        world.log.compact()

    # Two slow members, 2 and 3: a segment after each of their cursors, and what came last.
    sums = 3 * (ENTRY_BYTES + HIT_BYTES * ELEMENTS)
    assert world.log.nbytes <= 1.5 * BYTES_MAX + sums
    assert len(world.log) <= 1.5 * BYTES_MAX // ENTRY_BYTES + 3
    for rank in (2, 3):
        world.send_all(rank)
        assert world.receivers[rank].values.tolist() == world.values_at(500).tolist()


def test_little_is_merged_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master serves nobody while it merges."""
    monkeypatch.setattr("gradwire_server.log.log.MERGED_BYTES_MAX", 2 * ENTRY_BYTES)
    world = World()
    world.leave(3)
    for number in range(20):
        world.append(0, number)

    lengths = [len(world.log)]
    while world.log.nbytes > world.log.limit:
        world.log.compact()
        lengths.append(len(world.log))

    assert lengths[0] == 20
    assert set(np.diff(lengths).tolist()) <= {-1, -2}
    world.check()


def test_what_has_no_sum_is_sent_in_several_segments() -> None:
    world = World()
    for number in range(20):
        world.append(0, number, size=INT32_MAX // 6)  # a threshold is 3 quanta
        world.check()

    world.send_all(1)

    assert len(world.receivers[1].under_way) > 1
    assert world.receivers[1].values.tolist() == world.values_at(20).tolist()


def test_what_only_those_lack_that_do_not_count_is_stable() -> None:
    log = Log(ELEMENTS, BYTES_MAX)
    observers = {"counts": False}
    log.subscribe(0, 0.0)
    observer = log.subscribe(9, 0.0, counts=lambda: observers["counts"])
    log.accept(0, EncodedUpdate(1, 0, b"", closes={2: 5}), None, 0.0)
    for cursor in list(log._cursors):
        if cursor is not observer:
            assert log.next_of(cursor) is None, "it has its own"

    assert log.stable == Stable(1, {0: 1, 2: 5}), "in rounds, contributions are stable with it"

    observers["counts"] = True
    assert log.stable == Stable(0, {0: 1, 2: 5}), "it lacks something that is stable"


def test_the_log_that_goes_on_from_another_has_what_comes_after_their_common_places() -> None:
    world = World()
    for number in range(5):
        world.append(0, number)
    name = LOG.continued(4, now=1.0)  # the one before has one more, of which nobody knew

    log = Log(ELEMENTS, BYTES_MAX)
    log.start_from(Place(name, 4), {0: 4}, list(world.log)[2:4], Stable(2, {0: 2}))
    log.accept(0, EncodedUpdate(5, 0, b""), None, 0.0)

    def has_after(name: LogName) -> list[int]:
        return [position for position in range(9) if log.has_after(Place(name, position))]

    assert has_after(name) == [2, 3, 4, 5]
    assert has_after(LOG) == [2, 3, 4]
    assert has_after(LOG.continued(4, now=2.0)) == [2, 3, 4], "its entries after 4 are others"
    assert has_after(LogName(2 << 32, 7 << 32, 4)) == [], "it has nothing in common with this one"
    assert log.place == Place(name, 5)
    log.subscribe(1, 0.0, 3)
    assert log.stable == Stable(3, {0: 3})


@pytest.mark.usefixtures("small_parts")
@given(st.lists(st.tuples(ranks, st.booleans()), min_size=1, max_size=20))
def test_another_log_is_the_same_if_it_is_made_of_what_a_member_was_sent(
    history: list[tuple[int, bool]],
) -> None:
    """A standby follows so, and so a restarted master takes the log of a worker."""
    world = World()
    world.join(RANKS)
    for number, (rank, sends) in enumerate(history):
        world.append(rank, number)
        if sends:
            world.send(RANKS)
    world.send_all(RANKS)

    other, assembly = Log(ELEMENTS, 2**20), EntriesAssembly(ELEMENTS)
    while world.receivers[RANKS].under_way:
        message = world.receivers[RANKS].under_way[0]
        assembly.add(Entries.parse(message.payload), message.number)
        while (stop := assembly.after(other.head)) is not None:
            span, bodies, _ = assembly.take(stop)
            before = {rank: other.versions.get(rank, 0) for rank in range(RANKS)}
            other.append(Segment.received(stop, span, bodies, before, ELEMENTS, 0.0))
        world.deliver(RANKS)

    assert (other.head, other.versions) == (world.log.head, world.log.versions)
    head = other.head
    assert total_of(list(other)) == world.values_at(head).tolist()
    counts = [sum(segment.counts.get(rank, 0) for segment in other) for rank in range(RANKS)]
    assert counts == [other.versions.get(rank, 0) for rank in range(RANKS)]


def test_a_sum_says_of_each_rank_what_its_last_update_says() -> None:
    """Of results, the last one: one may come before an earlier one, and close less."""
    updates = [
        (0, EncodedUpdate(7, 1, body_of(1), clock=5, pace=9, closes={2: 4})),
        (1, EncodedUpdate(3, 2, body_of(2), clock=8)),
        (0, EncodedUpdate(8, 3, body_of(3), closes={2: 3, 3: 1})),
    ]
    parts = [
        Segment.of(11 + i, rank, encoded, None, 1.0 + i)
        for i, (rank, encoded) in enumerate(updates)
    ]

    merged = Segment.merged(parts, ELEMENTS)

    assert merged is not None
    assert (merged.start, merged.stop, merged.accepted_at) == (10, 13, 1.0)
    assert (merged.after, merged.counts) == ({0: 8, 1: 3}, {0: 2, 1: 1})
    assert (merged.based_on, merged.clocks, merged.paces) == ({0: 3, 1: 2}, {0: 5, 1: 8}, {0: 9})
    assert merged.closes == {2: 4, 3: 1}


def test_parts_that_have_elements_in_common_are_refused_if_these_overflow() -> None:
    body = pack_update(
        Update(0, ELEMENTS, 1, np.array([5], np.uint32), np.array([INT32_MAX], np.int32))
    )
    span = Span(0, {0: 2}, 2, 2, {0: 0})

    with pytest.raises(MalformedUpdateError, match="in common"):
        Segment.received(2, span, [body, body], {}, ELEMENTS, 0.0)


def total_of(segments: list[Segment]) -> list[int]:
    """Return the sum of what segments change."""
    total = np.zeros(ELEMENTS, np.int64)
    for segment in segments:
        update = segment.decoded(ELEMENTS)
        total[update.index] += update.change
    return total.tolist()
