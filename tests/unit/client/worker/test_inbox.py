"""The inbox: bounded, in order, and exact whatever is conflated."""

from threading import Thread
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.inbox import Arrivals, Inbox
from gradwire.worker.sums import Sum
from gradwire_codecs import MalformedUpdateError, Replica, encode
from gradwire_protocol.messages.updates import EncodedUpdate, Span

ELEMENTS = 200


Put: TypeAlias = tuple[int, EncodedUpdate] | Sum


def updates(seed: int, n: int, ranks: int = 3) -> list[Put]:
    """Return updates of some ranks, each with consecutive sequences; some come as a sum."""
    random = np.random.default_rng(seed)
    sequences = dict.fromkeys(range(ranks), 0)
    made: list[Put] = []
    for _ in range(n):
        rank = int(random.integers(ranks))
        sequences[rank] += 1
        change = random.normal(0, 0.01, ELEMENTS).astype(np.float32)
        [body] = encode(change, Replica.zeros(ELEMENTS), threshold=0.01)
        if random.random() < 0.3:
            span = Span({rank: sequences[rank] - 1}, {rank: sequences[rank]}, 1, 1, {})
            made.append(Sum([body], span))
        else:
            made.append((rank, EncodedUpdate(sequences[rank], 0, body)))
    return made


def apply(replica: Replica, each: Put) -> None:
    if isinstance(each, Sum):
        for change in each.changes(ELEMENTS):
            replica.apply(change)
    else:
        replica.apply(each[1].body)


def version_of(each: Put) -> tuple[int, int]:
    if isinstance(each, Sum):
        [version] = each.versions.items()
        return version
    rank, update = each
    return rank, update.sequence


def size_of(each: Put) -> int:
    return each.nbytes if isinstance(each, Sum) else len(each[1].body)


def total(arrivals: list[Arrivals]) -> Replica:
    """Add up everything that was taken."""
    replica = Replica.zeros(ELEMENTS)
    for taken in arrivals:
        if taken.conflated is not None:
            replica.values += taken.conflated
        for each in taken.updates:
            apply(replica, each)
    return replica


def one_by_one(put: list[Put]) -> Replica:
    replica = Replica.zeros(ELEMENTS)
    for each in put:
        apply(replica, each)
    return replica


def put_into(inbox: Inbox, each: Put) -> None:
    if isinstance(each, Sum):
        inbox.put_sum(each)
    else:
        inbox.put_update(*each)


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 30),
    bytes_max=st.sampled_from([0, 1, 100, 300, 10_000]),
    take_after=st.sets(st.integers(0, 29)),
)
def test_conflation_is_exact(seed: int, n: int, bytes_max: int, take_after: set[int]) -> None:
    """Whenever it is emptied: the same sum, every update once, the versions they lead to."""
    inbox, put = Inbox(ELEMENTS, bytes_max), updates(seed, n)

    taken = []
    for i, each in enumerate(put):
        put_into(inbox, each)
        if i in take_after:
            taken.append(inbox.take_all())
    taken.append(inbox.take_all())

    assert total(taken).values.tobytes() == one_by_one(put).values.tobytes()
    at = 0
    for arrivals in taken:
        assert sum(map(size_of, arrivals.updates)) <= bytes_max
        conflated = put[at : at + arrivals.conflated_count]
        assert arrivals.conflated_versions == dict(map(version_of, conflated))
        at += len(conflated)
        assert arrivals.updates == put[at : at + len(arrivals.updates)]
        at += len(arrivals.updates)
    assert at == n


def test_the_oldest_updates_are_conflated_and_no_more_than_needed() -> None:
    put = updates(2, 6)
    inbox = Inbox(ELEMENTS, bytes_max=sum(map(size_of, put[4:])))

    for each in put:
        put_into(inbox, each)
    taken = inbox.take_all()

    assert taken.updates == put[4:]
    assert taken.conflated_count == 4
    assert taken.conflated is not None
    assert taken.conflated.tolist() == one_by_one(put[:4]).values.tolist()


def test_an_update_that_cannot_be_conflated_is_an_error() -> None:
    inbox = Inbox(ELEMENTS, bytes_max=0)

    with pytest.raises(MalformedUpdateError, match="unknown format"):
        inbox.put_update(0, EncodedUpdate(1, 0, b"nope"))


def test_one_thread_may_put_while_another_one_takes() -> None:
    inbox, put = Inbox(ELEMENTS, bytes_max=500), updates(4, 400)

    def put_all() -> None:
        for each in put:
            put_into(inbox, each)

    thread = Thread(target=put_all)
    thread.start()
    taken = []
    while thread.is_alive():
        taken.append(inbox.take_all())
    thread.join()
    taken.append(inbox.take_all())

    assert total(taken).values.tobytes() == one_by_one(put).values.tobytes()
    assert sum(t.conflated_count + len(t.updates) for t in taken) == len(put)
    versions: dict[int, int] = {}
    for arrivals in taken:
        versions |= arrivals.conflated_versions
        for rank, sequence in map(version_of, arrivals.updates):
            assert sequence == versions.get(rank, 0) + 1
            versions[rank] = sequence
    assert versions == dict(map(version_of, put))
