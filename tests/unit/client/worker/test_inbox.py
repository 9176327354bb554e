"""The inbox: bounded, in order, and exact whatever is conflated."""

from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.inbox import Arrivals, Inbox
from gradwire_codecs import MalformedUpdateError, Replica, encode
from gradwire_protocol.messages.updates import EncodedUpdate

ELEMENTS = 200


def updates(seed: int, n: int, ranks: int = 3) -> list[tuple[int, EncodedUpdate]]:
    """Return updates of some ranks, each with consecutive sequences."""
    random = np.random.default_rng(seed)
    sequences = dict.fromkeys(range(ranks), 0)
    made = []
    for _ in range(n):
        rank = int(random.integers(ranks))
        sequences[rank] += 1
        change = random.normal(0, 0.01, ELEMENTS).astype(np.float32)
        [body] = encode(change, Replica.zeros(ELEMENTS), threshold=0.01)
        made.append((rank, EncodedUpdate(sequences[rank], 0, body)))
    return made


def total(arrivals: list[Arrivals]) -> Replica:
    """Add up everything that was taken."""
    replica = Replica.zeros(ELEMENTS)
    for taken in arrivals:
        if taken.conflated is not None:
            replica.values += taken.conflated
        for _, update in taken.updates:
            replica.apply(update.body)
    return replica


def one_by_one(put: list[tuple[int, EncodedUpdate]]) -> Replica:
    replica = Replica.zeros(ELEMENTS)
    for _, update in put:
        replica.apply(update.body)
    return replica


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
        inbox.put_update(*each)
        if i in take_after:
            taken.append(inbox.take_all())
    taken.append(inbox.take_all())

    assert total(taken).values.tobytes() == one_by_one(put).values.tobytes()
    at = 0
    for arrivals in taken:
        assert sum(len(update.body) for _, update in arrivals.updates) <= bytes_max
        conflated = put[at : at + arrivals.conflated_count]
        assert arrivals.conflated_versions == {rank: u.sequence for rank, u in conflated}
        at += len(conflated)
        assert arrivals.updates == put[at : at + len(arrivals.updates)]
        at += len(arrivals.updates)
    assert at == n


def test_the_oldest_updates_are_conflated_and_no_more_than_needed() -> None:
    put = updates(2, 6)
    inbox = Inbox(ELEMENTS, bytes_max=sum(len(u.body) for _, u in put[4:]))

    for each in put:
        inbox.put_update(*each)
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
            inbox.put_update(*each)

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
        for rank, update in arrivals.updates:
            assert rank is not None
            assert update.sequence == versions.get(rank, 0) + 1
            versions[rank] = update.sequence
    assert versions == {rank: update.sequence for rank, update in put}
