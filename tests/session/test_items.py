"""Items that the master grants to sessions, and the word to end a training, with a real master."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest

from gradwire import Item, Session, UsageError
from gradwire_protocol import Role
from support.local_master import LocalMaster
from support.sessions import RUN_KEY, change, finish, join
from support.waiting import SOON, wait_until
from support.wording import naming


def loop(session: Session, count: int = 6, **options: int) -> Iterator[Item]:
    """Loop over items, with a step for each."""
    for item in session.items("train", count, **options):
        session.push(change(0.5, 0, 0, 0))
        session.pull()
        yield item


def test_all_workers_shuffle_alike_and_each_epoch_anew(master: LocalMaster) -> None:
    session = join(master)

    taken = list(loop(session, 50, epochs=2, shuffle_seed=3))

    epochs = [[item.index for item in taken if item.epoch == epoch] for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in epochs)
    assert epochs[0] != epochs[1]
    # The legacy generator gives the same numbers with every numpy.
    assert epochs[0] == np.random.RandomState([3, 0]).permutation(50).tolist()


def test_what_a_loop_has_not_finished_goes_to_another_worker(master: LocalMaster) -> None:
    one, other = join(master), join(master)
    taken = loop(one, 3)
    assert next(taken) == Item(0, 0)
    assert next(taken) == Item(0, 1)

    taken.close()  # type: ignore[attr-defined]

    assert set(loop(other, 3)) == {Item(0, 1), Item(0, 2)}


def test_a_worker_waits_for_the_last_items_of_others_and_gets_those_of_a_lost_one(
    master: LocalMaster,
) -> None:
    one, other = join(master), join(master)
    held = loop(one, 2)
    next(held)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, loop(other, 2))
        wait_until(lambda: other.stats.updates_sent == 1, "the other to train on its item")
        assert not rest.done()

        one.close()

        assert rest.result(SOON) == [Item(0, 1), Item(0, 0)]


def test_a_loop_that_is_left_and_begun_again_goes_on(master: LocalMaster) -> None:
    session = join(master)
    assert list(islice(loop(session, 4), 2)) == [Item(0, 0), Item(0, 1)]

    assert list(loop(session, 4)) == [Item(0, 1), Item(0, 2), Item(0, 3)]
    assert list(loop(session, 4)) == []


def test_all_have_to_say_the_same_of_a_work(master: LocalMaster) -> None:
    one, other = join(master), join(master)
    next(loop(one, 4))

    with pytest.raises(UsageError) as refused:
        next(loop(other, 5))

    assert str(refused.value) == naming("'train'", "4 items", "5 items")


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("", {}, ["1", "64"]),
        ("a\nb", {}, ["printable"]),
        ("train", {"count": 0}, ["count=0", "from 1"]),
        ("train", {"count": 2**23}, ["count=8388608", "larger"]),
        ("train", {"epochs": 0}, ["epochs=0"]),
        ("train", {"shuffle_seed": -1}, ["shuffle_seed=-1"]),
        ("train", {"lease_seconds": 0.5}, ["lease_seconds=0.5"]),
    ],
)
def test_what_no_work_can_be_is_refused_with_its_limit(
    master: LocalMaster, name: str, options: dict[str, int], parts: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        join(master).items(name, **{"count": 3, **options})

    assert str(refused.value) == naming(*parts)


def test_one_loop_at_a_time_runs_over_a_work(master: LocalMaster) -> None:
    session = join(master)
    for _ in session.items("train", 2):
        with pytest.raises(UsageError) as refused:
            next(session.items("train", 2))
        assert next(session.items("validation", 2)) == Item(0, 0)
    assert str(refused.value) == naming("'train'", "runs already")


def test_who_says_that_training_is_to_end_is_heard_by_all(master: LocalMaster) -> None:
    one, other = join(master), join(master)
    taken = loop(other, 1_000)
    next(taken)
    assert [session.stopping for session in (one, other)] == [None, None]

    one.stop_training("the loss is nan")
    wait_until(lambda: other.stopping is not None, "the other to hear of it")

    assert list(taken) == []
    assert [session.stopping for session in (one, other)] == 2 * ["the loss is nan"]
    late = join(master)
    wait_until(lambda: late.stopping == "the loss is nan", "the one that joins to hear of it")
    finish(one, other, late)


def test_an_observer_gets_no_items_and_has_no_say(keyed_master: LocalMaster) -> None:
    join(keyed_master, key=RUN_KEY.worker_key("one"))
    observer = join(keyed_master, key=RUN_KEY.worker_key("two", Role.OBSERVER))

    for act in (lambda: observer.items("train", 3), lambda: observer.stop_training("bored")):
        with pytest.raises(UsageError) as refused:
            act()
        assert str(refused.value) == naming("observer")
