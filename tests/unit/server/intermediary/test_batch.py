"""Updates that wait for the parent: one sum at a time, and what becomes of one that is refused."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from gradwire_codecs import Update, decode
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.masters.relaying import (
    BASED_ON_MAX,
    MERGED_UPDATES_MAX,
    Merged,
    PeerSpan,
    Taken,
)
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.intermediary import batch as module
from gradwire_server.intermediary.batch import Batch, Entry

ELEMENTS = 100


def entry(rank: int, sequence: int, *, peer: int | None = None, place: int = 0) -> Entry:
    """Return an update of a rank that adds 1 to an element."""
    update = Update(0, ELEMENTS, 1, np.array([place], np.uint32), np.array([1], np.int32))
    encoded = EncodedUpdate(sequence, 10, b"", clock=sequence)
    return Entry.of(10 + rank if peer is None else peer, rank, encoded, update)


class Child:
    """A relay whose sums are added."""

    def __init__(self) -> None:
        self.answers: list[tuple[bool, dict[int, int]]] = []

    def sum_of(self, *spans: PeerSpan, place: int = 0) -> Entry:
        """Return a sum of updates of its peers, each of which adds 1 to an element."""
        count = sum(span.sequence - span.after for span in spans)
        update = Update(0, ELEMENTS, 1, np.array([place], np.uint32), np.array([count], np.int32))
        clocks = {span.rank: span.sequence for span in spans}
        return Entry(spans, (update,), count, 10 * count, clocks, self, self._take)

    def _take(self, done: bool, accepted: Mapping[int, int]) -> None:
        self.answers.append((done, dict(accepted)))


def begun(*entries: Entry, merge_seconds: float = 0.0) -> Batch:
    """Return a batch of updates, whose ranks were given to these peers as far as is needed."""
    batch = Batch(merge_seconds, GAPS.append)
    GAPS.clear()
    batch.restart(ELEMENTS)
    for each in entries:
        for span in each.spans:
            if span.rank not in batch._holders:
                batch.give_rank(span.rank, span.peer, span.after)
        batch.add(each)
    return batch


GAPS: list[int] = []
"""The peers of which something is missing, in the test under way."""


def sent(batch: Batch, now: float = 0.0) -> Merged:
    [merged] = batch.next_sum(now)
    return merged


def test_all_that_waits_is_one_sum_that_says_what_is_in_it() -> None:
    batch = begun(entry(0, 4), entry(1, 7), entry(0, 5))

    merged = sent(batch)

    assert merged.spans == (PeerSpan(10, 0, 3, 5), PeerSpan(11, 1, 6, 7))
    assert (merged.updates, merged.based_on, merged.clocks) == (3, 30, {0: 5, 1: 7})
    assert decode(merged.body, ELEMENTS).change.tolist() == [3]
    assert len(batch) == 3, "until it is taken"


def test_the_next_sum_waits_until_the_last_one_was_taken() -> None:
    batch = begun(entry(0, 1))
    first = sent(batch)
    batch.add(entry(0, 2))

    assert batch.due is None
    assert batch.next_sum(5.0) == []
    batch.receive(Taken(first.number, done=True, accepted={}))

    assert sent(batch).spans == (PeerSpan(10, 0, 1, 2),)
    assert batch.due is None, "nothing waits"


def test_sums_are_so_far_apart_at_least() -> None:
    batch = begun(entry(0, 1), merge_seconds=0.5)
    first = sent(batch, now=3.0)
    batch.receive(Taken(first.number, done=True, accepted={}))
    batch.add(entry(0, 2))

    assert batch.due == 3.5
    assert batch.next_sum(3.4) == []
    assert sent(batch, now=3.5).updates == 1


def test_a_refused_sum_is_made_again_of_what_the_parent_lacks() -> None:
    batch = begun(entry(0, 1), entry(0, 2), entry(1, 1), entry(2, 1))
    first = sent(batch)
    batch.add(entry(0, 3))
    batch.add(entry(1, 2))

    batch.receive(Taken(first.number, done=False, accepted={0: 1, 2: 1}))

    assert sent(batch).spans == (PeerSpan(10, 0, 1, 3),), (
        "of rank 1 nothing is taken, of 2 it has all"
    )
    assert GAPS == []


def test_a_peer_of_which_something_is_missing_for_good_has_to_come_back() -> None:
    batch = begun(entry(0, 5))
    first = sent(batch)

    batch.receive(Taken(first.number, done=False, accepted={0: 3}))

    assert batch.next_sum(0.0) == []
    assert GAPS == [10]
    assert len(batch) == 0


def test_what_a_peer_sends_again_over_another_connection_counts_once() -> None:
    batch = begun(entry(0, 1), entry(1, 1))

    batch.give_rank(0, 20, 0)
    batch.add(entry(0, 1, peer=20))

    assert sent(batch).spans == (PeerSpan(11, 1, 0, 1), PeerSpan(20, 0, 0, 1))


def test_another_run_begins_with_nothing_and_the_last_sum_is_still_answered() -> None:
    batch = begun(entry(0, 1))
    first = sent(batch)
    batch.add(entry(0, 2))

    batch.restart(50)

    batch.receive(Taken(first.number, done=False, accepted={}))
    assert batch.next_sum(0.0) == []
    assert len(batch) == 0


@pytest.mark.parametrize("number", [0, 2])
def test_an_answer_to_no_sum_is_refused(number: int) -> None:
    batch = begun(entry(0, 1))
    sent(batch)

    with pytest.raises(InvalidMessageError, match="nothing is under way"):
        batch.receive(Taken(number, done=True, accepted={}))


def test_a_large_sum_comes_in_parts_of_which_the_last_says_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MERGED_BYTES_MAX", 60)
    random = np.random.default_rng(0)
    batch = Batch(0.0, GAPS.append)
    batch.restart(1_000)
    batch.give_rank(0, 7, 0)
    index = np.arange(1_000, dtype=np.uint32)
    counts = random.integers(1, 1_000, 1_000).astype(np.int32)
    for sequence in (1, 2):
        update = Update(0, 1_000, 1, index, counts)
        batch.add(Entry.of(7, 0, EncodedUpdate(sequence, 0, b""), update))

    *parts, last = batch.next_sum(0.0)

    assert parts
    assert not any(part.is_last or part.spans or part.clocks for part in parts)
    assert (last.is_last, last.spans) == (True, (PeerSpan(7, 0, 0, 2),))
    total = np.zeros(1_000, np.int64)
    for part in (*parts, last):
        found = decode(part.body, 1_000)
        total[found.index] += found.change
    assert (total == 2 * counts).all()


# Sums of relays that are peers.


def with_child(*entries: Entry) -> tuple[Batch, Child]:
    """Return a batch, and a relay whose peers 0 and 1 are 30 and 31 here, with ranks 5 and 6."""
    batch, child = begun(*entries), Child()
    batch.give_rank(5, 30, 0, (child, 0))
    batch.give_rank(6, 31, 2, (child, 1))
    return batch, child


def test_the_sum_of_a_relay_is_part_of_the_next_one() -> None:
    batch, child = with_child(entry(0, 1))
    batch.add(child.sum_of(PeerSpan(0, 5, 0, 2), PeerSpan(1, 6, 2, 3)))

    merged = sent(batch)

    assert merged.spans == (PeerSpan(10, 0, 0, 1), PeerSpan(30, 5, 0, 2), PeerSpan(31, 6, 2, 3))
    assert (merged.updates, merged.based_on, merged.clocks) == (4, 40, {0: 1, 5: 2, 6: 3})
    assert decode(merged.body, ELEMENTS).change.tolist() == [4]
    assert child.answers == [], "until the parent has answered"

    batch.receive(Taken(merged.number, done=True, accepted={}))
    assert child.answers == [(True, {})]


def test_the_sum_of_a_relay_of_which_a_part_is_not_taken_goes_back_to_it() -> None:
    batch, child = with_child(entry(0, 1))
    batch.add(child.sum_of(PeerSpan(0, 5, 0, 2), PeerSpan(1, 6, 2, 3)))
    first = sent(batch)

    batch.receive(Taken(first.number, done=False, accepted={0: 0, 6: 2}))

    assert sent(batch).spans == (PeerSpan(10, 0, 0, 1),)
    assert child.answers == [(False, {6: 2})]


def test_a_sum_with_updates_of_a_rank_that_another_peer_has_is_never_sent() -> None:
    batch, child = with_child(entry(0, 1))
    batch.add(child.sum_of(PeerSpan(0, 5, 0, 2), PeerSpan(1, 6, 2, 3)))
    batch.give_rank(5, 40, 0)

    assert sent(batch).spans == (PeerSpan(10, 0, 0, 1),)
    assert child.answers == [(False, {6: 2})]


def test_a_peer_of_another_relay_with_the_same_number_is_another_one() -> None:
    batch, _ = with_child()
    other = Child()
    batch.add(other.sum_of(PeerSpan(0, 5, 0, 1)))

    assert batch.next_sum(0.0) == []
    assert other.answers == [(False, {})]


def test_counts_that_are_too_large_are_as_large_as_a_message_says() -> None:
    batch, child = with_child(entry(0, 1))
    large = child.sum_of(PeerSpan(0, 5, 0, 1))
    batch.add(replace(large, based_on=BASED_ON_MAX, count=MERGED_UPDATES_MAX))

    merged = Merged.parse(sent(batch).pack())

    assert (merged.based_on, merged.updates) == (BASED_ON_MAX, MERGED_UPDATES_MAX)


def test_where_nothing_is_merged_any_more_all_sums_are_given_back() -> None:
    batch, child = with_child()
    batch.add(child.sum_of(PeerSpan(0, 5, 0, 1)))
    sent(batch)
    batch.add(child.sum_of(PeerSpan(1, 6, 2, 3)))

    batch.end()

    assert child.answers == [(False, {}), (False, {})]
    assert len(batch) == 0


def test_another_run_gives_back_the_sums_that_wait() -> None:
    batch, child = with_child()
    batch.add(child.sum_of(PeerSpan(0, 5, 0, 1)))

    batch.restart(50)

    assert child.answers == [(False, {})]
    assert len(batch) == 0
