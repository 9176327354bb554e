"""The log, played by random histories against what a list of all updates says."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update, decode
from gradwire_codecs.arrays import Int64Array
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import Conflated, EncodedUpdate
from gradwire_server.log.cursor import Numbers
from gradwire_server.log.log import Log
from gradwire_server.log.segments import ENTRY_BYTES, HIT_BYTES, Segment

ELEMENTS = 100
RANKS = 4
BYTES_MAX = 6 * ENTRY_BYTES


def message_of(rank: int, sequence: int, seed: int, size: int = 2) -> ShapedMessage:
    random = np.random.default_rng(seed)
    index = np.flatnonzero(random.random(ELEMENTS) < 0.1).astype(np.uint32)
    count = random.choice([-size, -1, 1, size], len(index)).astype(np.int32)
    body = pack_update(Update(0, ELEMENTS, 3, index, count)) if len(index) else b""
    packed = EncodedUpdate(sequence, 0, body, clock=sequence).pack()
    return ShapedMessage.of(rank, sequence, Kind.UPDATE, packed, 1200)


class Receiver:
    """A member: it adds up what it is sent in order, and subtracts what is its own."""

    def __init__(self, world: "World", rank: int) -> None:
        self.world = world
        self.rank = rank
        self.cursor = world.log.subscribe(rank, 0.0)
        self.values = world.replica.copy()
        self.versions = dict(world.versions)
        self.under_way: list[ShapedMessage] = []
        self.connection = SimpleNamespace(sender=SimpleNamespace(fragment_bytes=1_200))

    def relay_update(self, message: ShapedMessage) -> None:
        """Receive an update, as a link sends it."""
        self.under_way.append(message)
        update = EncodedUpdate.parse(message.payload)
        rank = message.stream
        assert rank != self.rank
        self.add(update.body)
        self.take({rank: update.sequence - 1}, {rank: update.sequence})

    def relay_sum(self, message: ShapedMessage) -> None:
        """Receive a part of a sum, as a link sends it."""
        self.under_way.append(message)
        part = Conflated.parse(message.payload)
        self.add(part.body)
        if part.span is None:
            return
        own = self.world.changes[self.rank]
        last = part.span.after.get(self.rank, 0)
        for sequence in range(part.span.before.get(self.rank, 0) + 1, last + 1):
            self.values -= own[sequence]
        for rank, sequence in part.span.before.items():
            assert rank == self.rank or self.versions.get(rank, 0) == sequence, "a gap"
        self.take(part.span.before, part.span.after)

    def add(self, body: bytes) -> None:
        if body:
            update = decode(body, ELEMENTS)
            self.values[update.index] += update.change

    def take(self, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        for rank, last in after.items():
            if rank != self.rank:
                assert self.versions.get(rank, 0) == before[rank], "a gap, or twice"
                self.versions[rank] = last


class World:
    """A log, and what a list of all updates says."""

    def __init__(self) -> None:
        self.log = Log(ELEMENTS, BYTES_MAX)
        self.numbers = Numbers()
        self.replica = np.zeros(ELEMENTS, np.int64)
        self.versions: dict[int, int] = {}
        self.changes: dict[int, dict[int, Int64Array]] = {rank: {} for rank in range(RANKS)}
        self.receivers: dict[int, Receiver] = {}
        self.lacking: dict[int, set[tuple[int, int]]] = {}
        """By member: names of the updates that it has not acknowledged."""
        self.carried: dict[tuple[int, int, int], set[tuple[int, int]]] = {}
        """By member, stream and number: names of the updates in that message."""
        self.stable: dict[int, int] = {}
        for rank in range(RANKS):
            self.join(rank)

    def join(self, rank: int) -> None:
        self.receivers[rank] = Receiver(self, rank)
        self.lacking[rank] = set()

    def append(self, rank: int, seed: int, size: int = 2) -> None:
        sequence = self.versions.get(rank, 0) + 1
        message = message_of(rank, sequence, seed, size)
        encoded = EncodedUpdate.parse(message.payload)
        segment = self.log.append(rank, encoded, message, None, 0.0)
        update = segment.decoded(ELEMENTS)
        change = np.zeros(ELEMENTS, np.int64)
        change[update.index] = update.change
        self.changes[rank][sequence] = change
        self.versions[rank] = sequence
        self.replica += change
        for other in self.receivers.keys() - {rank}:
            self.lacking[other].add((rank, sequence))
        receiver = self.receivers[rank]  # a worker has its own at once
        receiver.values += change
        receiver.versions[rank] = sequence

    def send(self, rank: int, *, singly_bytes: float = 0) -> Segment | None:
        receiver = self.receivers[rank]
        segment = self.log.next_of(receiver.cursor, singly_bytes=singly_bytes)
        link = cast("Link", receiver)
        if segment is None:
            return None
        if segment.message is not None:
            receiver.cursor.send_update(segment, link)
        else:
            parts = segment.parts(self.log.versions_before(segment))
            receiver.cursor.send_sum(segment, parts, link, self.numbers, is_shared=True)
        last = receiver.under_way[-1]
        self.carried[rank, last.stream, last.number] = {
            (each, sequence)
            for each, stop in segment.after.items()
            for sequence in range(segment.before[each] + 1, stop + 1)
        }
        return segment

    def deliver(self, rank: int, number: int = 0) -> None:
        receiver = self.receivers[rank]
        message = receiver.under_way.pop(number % len(receiver.under_way))
        receiver.cursor.on_delivered(
            message.stream, message.number, cast("Link", receiver), self.numbers, 0.0
        )
        self.lacking[rank] -= self.carried.get((rank, message.stream, message.number), set())

    def check(self) -> None:
        log = self.log
        bounds = [segment.start for segment in log] + [log.head]
        assert bounds[1:] == [segment.stop for segment in log]
        assert log.nbytes == sum(segment.nbytes for segment in log)
        for receiver in self.receivers.values():
            cursor = receiver.cursor
            assert cursor.acknowledged <= cursor.sent
            assert bounds[0] <= cursor.acknowledged, "what somebody lacks is there"
            assert set(cursor.positions) <= set(bounds), "nothing is merged across a cursor"
            assert bool(cursor.nbytes) == bool(receiver.under_way)
        stable = log.stable
        assert covers(stable, self.stable), "what was stable is so for ever"
        for names in self.lacking.values():
            assert all(stable.get(rank, 0) < sequence for rank, sequence in names)
        self.stable = stable


ops = st.one_of(
    st.tuples(st.just("append"), st.integers(0, RANKS - 1), st.integers(0, 999)),
    st.tuples(st.just("send"), st.integers(0, RANKS - 1), st.booleans()),
    st.tuples(st.just("deliver"), st.integers(0, RANKS - 1), st.integers(0, 5)),
    st.tuples(st.just("leave and join"), st.integers(0, RANKS - 1), st.none()),
)


@given(st.lists(ops, max_size=60))
def test_what_a_member_was_sent_is_what_it_lacked(history: list[tuple[str, int, int]]) -> None:
    world = World()
    for what, rank, argument in history:
        receiver = world.receivers[rank]
        if what == "append":
            world.append(rank, argument)
        elif what == "send":
            world.send(rank, singly_bytes=math.inf if argument else 0)
        elif what == "deliver" and receiver.under_way:
            world.deliver(rank, argument)
        elif what == "leave and join":
            world.log.unsubscribe(receiver.cursor)
            world.join(rank)
        world.check()

    for rank, receiver in world.receivers.items():
        while world.send(rank):
            pass
        assert receiver.cursor.sent == world.log.head
        assert receiver.values.tolist() == world.replica.tolist()
        assert receiver.versions == world.versions
        while receiver.under_way:
            world.deliver(rank)
        assert world.log.count_after(receiver.cursor) == 0
        world.check()
    assert world.log.stable == world.versions


def test_members_that_are_equally_far_get_the_same_message() -> None:
    world = World()
    for number in range(6):
        world.append(number % 2, number)

    first, second = world.send(2), world.send(3)

    assert first is second
    assert first is not None
    assert (first.updates, first.after) == (6, {0: 3, 1: 3})
    assert first.clocks == {0: 3, 1: 3}
    assert world.receivers[2].under_way == world.receivers[3].under_way


def test_the_numbers_of_a_members_sums_rise() -> None:
    """Else the transport would take one for a message that has come."""
    world = World()
    for number in range(6):
        world.append(number % 2, number)
        for rank in (2, 3):
            if number % (1 + rank) == 1:
                world.send(rank)
    while world.send(2) or world.send(3):
        pass

    for rank in (2, 3):
        sums = [m.number for m in world.receivers[rank].under_way if m.kind == Kind.CONFLATED]
        assert sums == sorted(set(sums))


def test_a_large_sum_goes_in_parts_and_nothing_follows_before_they_were_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwire_server.log.segments.PART_HITS", 2)
    monkeypatch.setattr("gradwire_server.log.cursor.PARTS_UNDER_WAY_MAX", 3)
    world = World()
    for number in range(8):
        world.append(number % 2, number)
    receiver = world.receivers[2]

    segment = world.send(2)

    assert segment is not None
    assert len(receiver.under_way) == 3
    while receiver.cursor.sends_sum:
        assert receiver.cursor.acknowledged == 0
        world.deliver(2)
    while receiver.under_way:
        world.deliver(2)
    assert receiver.cursor.acknowledged == world.log.head
    assert receiver.values.tolist() == world.replica.tolist()


def test_sums_that_follow_one_another_are_sent_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers below the last one of a sum that was taken do not count any more."""
    monkeypatch.setattr("gradwire_server.log.segments.PART_HITS", 2)
    monkeypatch.setattr("gradwire_server.log.cursor.PARTS_UNDER_WAY_MAX", 3)
    world = World()
    for number in range(4):
        world.append(number % 2, number)
    first = world.send(2)
    for number in range(4):
        world.append(number % 2, number)
    second = world.send(2)

    assert first is not None
    assert second is not None
    order = []
    while world.receivers[2].under_way:
        order.append(Conflated.parse(world.receivers[2].under_way[0].payload).position)
        world.deliver(2)
    assert order == sorted(order)
    assert set(order) == {first.stop, second.stop}
    assert world.receivers[2].cursor.acknowledged == world.log.head
    assert world.receivers[2].values.tolist() == world.replica.tolist()


def test_a_single_update_is_sent_as_it_came() -> None:
    world = World()
    world.append(0, 7)

    world.send(1)

    [segment] = world.log
    assert world.receivers[1].under_way == [segment.message]


def test_memory_follows_from_how_many_are_slow_and_not_from_for_how_long() -> None:
    world = World()
    for number in range(500):
        world.append(0, number)
        world.send(1)
        world.deliver(1)
        if number == 250:
            world.send(2)

    # Two slow members, 2 and 3: a segment after each of their cursors, and what came last.
    sums = 3 * (ENTRY_BYTES + HIT_BYTES * ELEMENTS)
    assert world.log.nbytes <= 1.5 * BYTES_MAX + sums
    assert len(world.log) <= 1.5 * BYTES_MAX // ENTRY_BYTES + 3
    for rank in (2, 3):
        while world.send(rank):
            pass
        assert world.receivers[rank].values.tolist() == world.replica.tolist()


def test_what_has_no_sum_is_sent_in_several_segments() -> None:
    world = World()
    for number in range(20):
        world.append(0, number, size=INT32_MAX // 6)  # a threshold is 3 quanta
        world.check()

    while world.send(1):
        pass

    assert world.receivers[1].values.tolist() == world.replica.tolist()


@given(st.lists(st.tuples(st.integers(0, RANKS - 1), st.booleans()), min_size=1, max_size=40))
def test_who_comes_back_lacks_what_its_versions_say(history: list[tuple[int, bool]]) -> None:
    """Unless some of it was dropped, or merged with what it has."""
    world = World()
    versions: dict[int, int] = {}
    for number, (rank, had) in enumerate(history):
        world.append(rank, number)
        for other in range(RANKS):
            if other != 3 and number % 3:
                world.send(other)
        if had and world.versions[rank] == versions.get(rank, 0) + 1:
            versions[rank] = world.versions[rank]

    found = world.log.lacking(versions, without=3)

    lacks = {r: s for r, s in world.versions.items() if r != 3 and s > versions.get(r, 0)}
    if found is None:
        assert len(world.log) < len(history), "every update is there by itself"
        return
    position, segments = found
    has: dict[int, int] = {}
    for segment in segments:
        for rank, before in segment.before.items():
            if rank != 3:
                assert before == has.get(rank, versions.get(rank, 0))
                has[rank] = segment.after[rank]
    assert has == lacks
    assert all(segment.start >= position for segment in segments)
