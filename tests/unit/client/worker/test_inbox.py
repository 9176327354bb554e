"""The inbox: bounded, in order, and exact whatever is conflated."""

from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.inbox import Arrivals, Inbox
from gradwire.worker.sums import Sum
from gradwire_codecs import MalformedUpdateError, Replica, encode
from gradwire_protocol.messages.updates import Span

ELEMENTS = 200


def updates(seed: int, n: int, ranks: int = 3) -> list[Sum]:
    """Return the entries of a log: updates of some ranks, up to two at once, and own ones."""
    random = np.random.default_rng(seed)
    sequences = dict.fromkeys(range(ranks), 0)
    made: list[Sum] = []
    position = accepted = 0
    for _ in range(n):
        rank = int(random.integers(ranks))
        count = int(random.integers(1, 3))
        own = int(random.integers(2))
        change = random.normal(0, 0.01, ELEMENTS).astype(np.float32)
        [body] = encode(change, Replica.zeros(ELEMENTS), threshold=0.01)
        before = {rank: sequences[rank]}
        sequences[rank] += count
        span = Span(position, {rank: sequences[rank]}, count, 1, {})
        position += own + count
        accepted += own
        made.append(Sum(position, [body], span, before, (), ranks, accepted))
    return made


def apply(replica: Replica, each: Sum) -> None:
    for change in each.changes(ELEMENTS):
        replica.apply(change)


def version_of(each: Sum) -> tuple[int, int]:
    [version] = each.versions.items()
    return version


def size_of(entries: list[Sum]) -> int:
    return sum(each.nbytes for each in entries)


def total(arrivals: list[Arrivals]) -> Replica:
    """Add up everything that was taken."""
    replica = Replica.zeros(ELEMENTS)
    for taken in arrivals:
        if taken.conflated is not None:
            replica.values += taken.conflated
        for each in taken.updates:
            apply(replica, each)
    return replica


def one_by_one(put: list[Sum]) -> Replica:
    replica = Replica.zeros(ELEMENTS)
    for each in put:
        apply(replica, each)
    return replica


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 30),
    bytes_max=st.sampled_from([0, 1, 100, 300, 10_000]),
    take_after=st.sets(st.integers(0, 29)),
)
def test_conflation_is_exact(seed: int, n: int, bytes_max: int, take_after: set[int]) -> None:
    """Whenever it is emptied: the same sum, every update once, and how far the log is there."""
    inbox, put = Inbox(ELEMENTS, bytes_max), updates(seed, n)

    taken = []
    for i, each in enumerate(put):
        inbox.put(each)
        if i in take_after:
            taken.append(inbox.take_all())
    taken.append(inbox.take_all())

    assert total(taken).values.tobytes() == one_by_one(put).values.tobytes()
    at = 0
    for arrivals in taken:
        assert size_of(arrivals.updates) <= bytes_max
        conflated: list[Sum] = []
        while sum(each.updates for each in conflated) < arrivals.conflated_count:
            conflated.append(put[at])
            at += 1
        assert arrivals.conflated_versions == dict(map(version_of, conflated))
        if conflated:
            place = (conflated[-1].stop, conflated[-1].accepted)
            assert (arrivals.position, arrivals.accepted) == place
        assert arrivals.updates == put[at : at + len(arrivals.updates)]
        at += len(arrivals.updates)
    assert at == n


def test_the_oldest_updates_are_conflated_and_no_more_than_needed() -> None:
    put = updates(2, 6)
    inbox = Inbox(ELEMENTS, bytes_max=size_of(put[4:]))

    for each in put:
        inbox.put(each)
    taken = inbox.take_all()

    assert taken.updates == put[4:]
    assert taken.conflated_count == sum(each.updates for each in put[:4])
    assert taken.conflated is not None
    assert taken.conflated.tolist() == one_by_one(put[:4]).values.tolist()


def test_an_update_that_cannot_be_conflated_is_an_error() -> None:
    inbox = Inbox(ELEMENTS, bytes_max=0)

    with pytest.raises(MalformedUpdateError, match="unknown format"):
        inbox.put(Sum(1, [b"nope"], Span(0, {0: 1}, 1, 1, {}), {0: 0}))


def test_one_thread_may_put_while_another_one_takes() -> None:
    inbox, put = Inbox(ELEMENTS, bytes_max=500), updates(4, 400)

    def put_all() -> None:
        for each in put:
            inbox.put(each)

    thread = Thread(target=put_all)
    thread.start()
    taken = []
    while thread.is_alive():
        taken.append(inbox.take_all())
    thread.join()
    taken.append(inbox.take_all())

    assert total(taken).values.tobytes() == one_by_one(put).values.tobytes()
    one_by_one_taken = [each for arrivals in taken for each in arrivals.updates]
    conflated = sum(arrivals.conflated_count for arrivals in taken)
    assert conflated + sum(each.updates for each in one_by_one_taken) == sum(
        each.updates for each in put
    )
    stops = []
    for arrivals in taken:
        stops += [arrivals.position] if arrivals.conflated_count else []
        stops += [each.stop for each in arrivals.updates]
    assert stops == sorted(set(stops))
    assert stops[-1] == put[-1].stop
