"""What a worker has of the master's log, and what it keeps of that, whatever comes and when."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.log_copy import LogCopy, NotKeptError
from gradwire.worker.membership import Membership
from gradwire.worker.own_updates import OwnUpdates
from gradwire.worker.sums import Sum
from gradwire.worker.update_log import ENTRY_BYTES, OwnUpdate
from gradwire_codecs import Replica, Update
from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merging import merge
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import LogName, Place
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_protocol.messages.updates import Entries, Span, Stable
from support.peer import LOG
from support.wording import naming

ELEMENTS = 8
OURS = 2
OBSERVER = 9
"""A rank without updates."""


@dataclass(frozen=True)
class Accepted:
    """An update that the master has accepted."""

    rank: int
    sequence: int
    change: Update

    @property
    def body(self) -> bytes:
        return packed(self.change)


def packed(change: Update | None) -> bytes:
    return pack_update(change) if change is not None and change.hits else b""


class MasterLog:
    """The log of a master, with updates of these ranks, in this order."""

    def __init__(self, ranks: Sequence[int], seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        versions: dict[int, int] = {}
        self.updates: list[Accepted] = []
        for rank in ranks:
            versions[rank] = versions.get(rank, 0) + 1
            values = random.integers(-1, 2, ELEMENTS)
            index = np.flatnonzero(values)
            count = values[index].astype(np.int32)
            change = Update(0, ELEMENTS, 1, index.astype(np.uint32), count)
            self.updates.append(Accepted(rank, versions[rank], change))

    def versions_at(self, position: int) -> dict[int, int]:
        return {each.rank: each.sequence for each in self.updates[:position]}

    def values_at(self, position: int) -> Int32Array:
        replica = Replica.zeros(ELEMENTS)
        for each in self.updates[:position]:
            replica.apply(each.change)
        return replica.values

    def stable_at(self, position: int) -> Stable:
        return Stable(position, self.versions_at(position))

    def own_updates(self) -> OwnUpdates:
        """Return our updates in it, all of them posted."""
        own = OwnUpdates(Membership(ELEMENTS))
        for each in self.updates:
            if each.rank == OURS:
                update = OwnUpdate(each.sequence, 0, each.body)
                own.log.append(update)
                own.note_posted(update, 0.0)
        return own

    def sent(self, position: int, stops: Sequence[int], rank: int) -> list[list[EntriesReceived]]:
        """Return what a member is sent after a position, in sums that end at `stops`.

        A sum of more than one update comes in two parts. An update of the member itself is sent to
        it only as a part of a sum.
        """
        told, number = position, 0
        messages: list[list[EntriesReceived]] = []
        for stop in stops:
            updates = self.updates[position:stop]
            if [each.rank for each in updates] != [rank]:
                total = merge([each.change for each in updates], ELEMENTS)
                bodies = [packed(total)]
                if len(updates) > 1 and total is not None and total.hits > 1:
                    bodies = [packed(half) for half in halves(total)]
                span = self._span(told, position, stop, len(bodies))
                spans = [None] * (len(bodies) - 1) + [span]
                messages.append(
                    [
                        EntriesReceived(Entries(stop, body, each), number + i)
                        for i, (body, each) in enumerate(zip(bodies, spans, strict=True))
                    ]
                )
                number += len(bodies)
                told = stop
            position = stop
        return messages

    def _span(self, told: int, position: int, stop: int, parts: int) -> Span:
        after = {each.rank: each.sequence for each in self.updates[position:stop]}
        return Span(told, after, stop - position, parts, dict.fromkeys(after, 0))


def halves(change: Update) -> list[Update]:
    middle = change.hits // 2
    return [
        Update(0, ELEMENTS, change.multiple, change.index[part], change.count[part])
        for part in (slice(0, middle), slice(middle, change.hits))
    ]


class Reader:
    """Takes a log after a position, and keeps a replica that has our own updates from the start."""

    def __init__(
        self, log: MasterLog, position: int, rank: int, own: OwnUpdates, copy: LogCopy | None = None
    ) -> None:
        self.log = log
        self.rank = rank
        self.own = own
        self.copy = copy or LogCopy(ELEMENTS)
        self.copy.begin_with(Place(LOG, position), log.versions_at(position))
        self.replica = Replica(log.values_at(position) + self._not_there_yet(position))

    def take(self, *messages: EntriesReceived) -> list[tuple[Sum, int]]:
        """Take messages and what is complete with them, and check what is here then."""
        taken = []
        for message in messages:
            self.copy.add(message)
        while (each := self.copy.take_next(self.rank, self.own)) is not None:
            taken.append(each)
            for change in each[0].changes(ELEMENTS):
                self.replica.apply(change)
            self.check()
        self.check()
        return taken

    def check(self) -> None:
        position, versions = self.copy.position, self.log.versions_at(self.copy.position)
        assert dict(self.copy.versions) == versions
        expected = self.log.values_at(position) + self._not_there_yet(position)
        assert self.replica.values.tolist() == expected.tolist()

    def _not_there_yet(self, position: int) -> Int32Array:
        """Return the sum of the reader's updates that the log has later."""
        replica = Replica.zeros(ELEMENTS)
        for each in self.log.updates[position:]:
            if each.rank == self.rank:
                replica.apply(each.change)
        return replica.values


def flat(messages: Sequence[Sequence[EntriesReceived]]) -> list[EntriesReceived]:
    return [message for parts in messages for message in parts]


def stops_after(data: st.DataObject, position: int, end: int) -> list[int]:
    """Draw where the sums end that lead from one position to another."""
    between = data.draw(st.sets(st.integers(position + 1, max(end - 1, position + 1))))
    return sorted({each for each in between if each < end} | ({end} if end > position else set()))


RANKS = st.lists(st.sampled_from([0, 1, OURS, OURS]), min_size=1, max_size=12)


@given(ranks=RANKS, seed=st.integers(0, 2**32), small=st.booleans(), data=st.data())
def test_whatever_comes_and_when_a_prefix_is_here_and_can_be_sent_again(
    ranks: list[int], seed: int, small: bool, data: st.DataObject
) -> None:
    """Over two connections, in messages that differ, in any order, while STABLE comes."""
    log = MasterLog(ranks, seed)
    own = log.own_updates()
    bytes_max = 3 * (ENTRY_BYTES + 50) if small else 1_000_000
    copy = LogCopy(ELEMENTS, bytes_max)
    reader = Reader(log, 0, OURS, own, copy)
    stable = 0

    for is_last in (False, True):
        begin = copy.position
        messages = log.sent(begin, stops_after(data, begin, len(ranks)), OURS)
        lacking = {each.number for each in flat(messages)}
        order = data.draw(st.permutations(flat(messages)))
        kept_of_order = len(order) if is_last else data.draw(st.integers(0, len(order)))
        for message in order[:kept_of_order]:
            reader.take(message)
            lacking.discard(message.number)
            if data.draw(st.booleans()):
                stable = data.draw(st.integers(stable, delivered(messages, lacking, len(ranks))))
                check_stable(reader, stable)
            assert copy.nbytes <= bytes_max
            check_sent_again(reader, data)
        copy.start_over()

    reader.copy.note_stable(log.stable_at(len(ranks)), OURS)
    reader.check()
    assert copy.position == len(ranks)
    assert (copy.nbytes, copy.kept_after(own)) == (0, len(ranks))


def delivered(messages: list[list[EntriesReceived]], lacking: set[int], end: int) -> int:
    """Return up to where a member has everything but its own updates."""
    for parts in messages:
        span = parts[-1].entries.span
        assert span is not None
        if any(part.number in lacking for part in parts):
            return parts[-1].entries.stop - span.updates
    return end


def check_stable(reader: Reader, stable: int) -> None:
    copy, own = reader.copy, reader.own
    before = copy.kept_after(own)
    copy.note_stable(reader.log.stable_at(stable), OURS)
    reader.check()
    assert copy.position >= stable
    assert copy.kept_after(own) <= max(before, stable), "only what is stable is dropped"
    assert all(each.stop > stable for each in copy.messages_after(0, OURS, own))


def check_sent_again(reader: Reader, data: st.DataObject) -> None:
    """Check that what is kept leads another worker from a position to ours, in any order."""
    copy, own = reader.copy, reader.own
    kept = list(copy.messages_after(copy.kept_after(own), OURS, own))
    begins = [each.span.start for each in kept if each.span is not None]
    begin = data.draw(st.sampled_from([*begins, copy.position]))
    again = list(copy.messages_after(begin, OURS, own))
    other = Reader(reader.log, begin, OBSERVER, OwnUpdates(Membership(ELEMENTS)))
    numbered = [EntriesReceived(each, number) for number, each in enumerate(again)]
    other.take(*data.draw(st.permutations(numbered)))

    assert other.copy.position == copy.position


def test_own_updates_are_sent_again_in_their_places_with_what_was_told_with_them() -> None:
    log = MasterLog([0, OURS, 1, 1])
    own = OwnUpdates(Membership(ELEMENTS))
    update = OwnUpdate(1, 5, log.updates[1].body, clock=17, pace=900)
    own.log.append(update)
    own.note_posted(update, 0.0)
    reader = Reader(log, 0, OURS, own)
    messages = flat(log.sent(0, [1, 2, 4], OURS))

    reader.take(*messages)
    again = list(reader.copy.messages_after(0, OURS, own))

    assert again[0] == messages[0].entries
    span = Span(1, {OURS: 1}, 1, 1, {OURS: 5}, {OURS: 17}, {OURS: 900})
    assert again[1] == Entries(2, update.body, span)
    assert [each.body for each in again[2:]] == [each.entries.body for each in messages[1:]]
    assert again[-1].span is not None
    assert again[-1].span.start == 2, "nothing of our own is in between any more"


def test_a_sum_is_sent_again_as_a_whole_and_without_parts_that_change_nothing() -> None:
    span = Span(0, {0: 2, 1: 1}, 3, 2, {})
    log = MasterLog([])
    reader = Reader(log, 0, OURS, log.own_updates())
    reader.copy.add(EntriesReceived(Entries(3, b"", None), 0))
    reader.copy.add(EntriesReceived(Entries(3, b"body", span), 1))
    reader.copy.take_next(OURS, reader.own)

    for position in (0, 1, 2):
        [again] = reader.copy.messages_after(position, OURS, reader.own)
        assert again == Entries(3, b"body", replace(span, parts=1))
    assert list(reader.copy.messages_after(3, OURS, reader.own)) == []


def test_beyond_a_bound_the_oldest_are_dropped() -> None:
    log = MasterLog([0, OURS] * 10)
    own = log.own_updates()
    copy = LogCopy(ELEMENTS, 5 * (ENTRY_BYTES + 50))
    reader = Reader(log, 0, OURS, own, copy)

    reader.take(*flat(log.sent(0, range(1, 21), OURS)))

    assert 4 * ENTRY_BYTES < copy.nbytes <= 5 * (ENTRY_BYTES + 50)
    assert 0 < copy.kept_after(own) < copy.position
    assert next(copy.messages_after(0, OURS, own)).stop == copy.kept_after(own) + 1


def test_own_updates_that_are_not_kept_any_more_end_what_can_be_sent_again() -> None:
    log = MasterLog([0, OURS, 1, OURS, 0])
    own = log.own_updates()
    reader = Reader(log, 0, OURS, own)
    reader.take(*flat(log.sent(0, [1, 2, 3, 4, 5], OURS)))

    assert reader.copy.kept_after(own) == 0
    own.log.forget(1)
    assert reader.copy.kept_after(own) == 2
    own.log.forget(2)
    assert reader.copy.kept_after(own) == 4
    with pytest.raises(NotKeptError):
        list(reader.copy.messages_after(2, OURS, own))


def test_own_updates_in_a_sum_that_are_not_kept_any_more_are_an_error() -> None:
    log = MasterLog([OURS, 0, OURS])
    own = log.own_updates()
    own.log.forget(1)
    copy = Reader(log, 0, OURS, own).copy
    for message in flat(log.sent(0, [3], OURS)):
        copy.add(message)

    with pytest.raises(NotKeptError):
        copy.take_next(OURS, own)


@pytest.mark.parametrize(
    ("stop", "after"),
    [(4, {0: 1}), (6, {0: 4}), (5, {0: 2})],
    ids=["positions that are here", "more updates than positions", "updates that are here"],
)
def test_entries_that_are_here_already_are_refused(stop: int, after: dict[int, int]) -> None:
    copy = LogCopy(ELEMENTS)
    copy.begin_with(Place(LOG, 4), {0: 2, 1: 2})
    updates = 3 if stop == 6 else 1
    copy.add(EntriesReceived(Entries(stop, b"", Span(3, after, updates, 1, {})), 0))

    with pytest.raises(InvalidMessageError, match=naming("Entries", stop, 4)):
        copy.take_next(OURS, OwnUpdates(Membership(ELEMENTS)))


@pytest.mark.parametrize("stops", [[1, 2, 3], [1, 3], [3]])
def test_own_updates_that_were_never_sent_are_refused(stops: list[int]) -> None:
    """Where they are inferred, and where they are in a sum."""
    log = MasterLog([0, OURS, 1])
    copy = LogCopy(ELEMENTS)
    copy.begin_with(Place(LOG, 0), {})
    own = OwnUpdates(Membership(ELEMENTS))
    *first, last = flat(log.sent(0, stops, OURS))
    for message in first:
        copy.add(message)
    while copy.take_next(OURS, own) is not None:
        pass
    copy.add(last)

    with pytest.raises(InvalidMessageError, match=naming("Entries", "our updates up to 1", 0)):
        copy.take_next(OURS, own)


def test_stable_is_not_believed_where_others_updates_are_on_their_way() -> None:
    log = MasterLog([0, 1, OURS])
    reader = Reader(log, 0, OURS, log.own_updates())
    reader.take(*flat(log.sent(0, [1], OURS)))

    reader.copy.note_stable(log.stable_at(3), OURS)

    assert reader.copy.position == 1
    assert reader.copy.kept_after(reader.own) == 0


def test_the_last_results_are_kept_though_all_workers_have_them() -> None:
    copy = LogCopy(ELEMENTS)
    copy.results_kept = 2
    copy.begin_with(Place(LOG, 0), {})
    own = OwnUpdates(Membership(ELEMENTS))
    for position in range(1, 9):  # results of two updates each: up to 2, 4, 6 and 8
        closes = {0: position} if position % 2 == 0 else {}
        span = Span(position - 1, {OBSERVER: position}, 1, 1, {}, closes=closes)
        copy.add(EntriesReceived(Entries(position, b"", span), position))
        copy.take_next(OURS, own)

    copy.note_stable(Stable(8, {OBSERVER: 8}), OURS)

    assert copy.kept_after(own) == 3, "the end of the result before them says where they begin"
    assert copy.versions == {OBSERVER: 8, 0: 8}


# A lost connection, and another master.


def test_a_lost_connection_goes_back_to_what_our_replica_has() -> None:
    log = MasterLog([0, 1, 0, 1, 0, 1])
    reader = Reader(log, 0, OURS, log.own_updates())
    reader.take(*flat(log.sent(0, [1, 2], OURS)))
    copy = reader.copy

    copy.change_to(Place(LOG, 4), log.versions_at(4))
    for message in flat(log.sent(4, [5], OURS)):
        copy.add(message)
    assert copy.take_next(OURS, reader.own) is not None
    assert (copy.position, copy.versions) == (5, log.versions_at(5))
    copy.start_over()

    assert (copy.place, copy.versions) == (Place(LOG, 2), log.versions_at(2))
    assert copy.kept_after(reader.own) == 0
    reader.take(*flat(log.sent(2, [6], OURS)))
    assert copy.position == 6


def test_parts_of_a_lost_connection_are_forgotten() -> None:
    log = MasterLog([0, 1, 0, 1])
    reader = Reader(log, 0, OURS, log.own_updates())
    [parts] = log.sent(0, [4], OURS)
    assert len(parts) == 2
    reader.take(parts[0])

    reader.copy.start_over()
    reader.take(parts[1])
    assert reader.copy.position == 0
    reader.take(parts[0])

    assert reader.copy.position == 4


def test_a_replica_that_has_come_is_not_given_back() -> None:
    copy = LogCopy(ELEMENTS)
    copy.begin_with(Place(LOG, 2), {0: 2})
    copy.change_to(Place(LOG, 7), {0: 7})

    copy.settle()
    copy.start_over()

    assert (copy.place, copy.versions) == (Place(LOG, 7), {0: 7})


def test_our_place_is_in_the_log_of_the_next_master_from_when_that_goes_on() -> None:
    log = MasterLog([0, 0])
    reader = Reader(log, 0, OURS, log.own_updates())
    following = LogName(2 << 32, LOG.id, 1)
    reader.take(*flat(log.sent(0, [1], OURS)))

    reader.copy.continue_in(following)
    reader.copy.start_over()

    assert reader.copy.place == Place(following, 1)
