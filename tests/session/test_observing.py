"""A session with an observer's key: it receives, sends nothing, and nobody waits for it."""

import numpy as np
import pytest

import gradwire
from gradwire import RefusedError
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol import Role
from support.local_master import LocalMaster
from support.sessions import (
    RUN_KEY,
    change,
    finish,
    join,
    loss_of,
    pull,
    stepping_changes,
    zeros,
)
from support.waiting import wait_until
from support.wording import naming

ONE = change(1.0, 0.0, 0.0, 0.0)


@pytest.fixture
def master(keyed_master: LocalMaster) -> LocalMaster:
    return keyed_master


def worker_in(master: LocalMaster, name: str = "gpu1", **options: object) -> gradwire.Session:
    return join(master, key=RUN_KEY.worker_key(name), **options)


def observer_in(master: LocalMaster, target: Float32Array | None = None) -> gradwire.Session:
    key = RUN_KEY.worker_key("eyes", Role.OBSERVER)
    return join(master, zeros() if target is None else target, key=key)


def test_a_step_applies_what_workers_sent_and_sends_nothing(master: LocalMaster) -> None:
    worker, target = worker_in(master), zeros()
    observer = observer_in(master, target)
    worker.push(ONE)

    wait_until(lambda: stepping_changes(observer, target, 0), "the update to be applied")
    observer.step()

    assert target.tolist() == ONE.tolist()
    assert observer.stats.updates_sent == 0
    assert master.sample("gradwire_updates_accepted_total") == 1


def test_it_counts_for_nobody_and_sees_the_workers(master: LocalMaster) -> None:
    worker = worker_in(master)
    observer = observer_in(master)
    other = worker_in(master, "gpu2")
    wait_until(lambda: observer.world_size == 2, "both workers in the roster")
    worker.wait(2)

    assert (worker.world_size, other.rank) == (2, 1)


def test_finish_ends_with_the_bits_that_the_workers_have(master: LocalMaster) -> None:
    worker = worker_in(master)
    observer = observer_in(master)
    worker.push(np.full(4, 0.75, np.float32))
    before = observer.finished

    finish(worker, observer)

    assert not before
    assert observer.finished
    assert observer.digest() == worker.digest()


def test_workers_finish_without_it_and_it_may_finish_after_them(master: LocalMaster) -> None:
    worker, target = worker_in(master), zeros()
    observer = observer_in(master, target)
    worker.push(ONE)
    worker.finish()
    wait_until(lambda: observer.finished, "the observer to hear of the end")

    observer.finish()

    assert target.tolist() == ONE.tolist()


def test_finish_says_whom_it_waits_for(master: LocalMaster) -> None:
    worker = worker_in(master)
    observer = observer_in(master)

    with pytest.raises(gradwire.DeadlineError, match=naming("ranks", "0 (gpu1")):
        observer.finish(timeout=0.1)

    assert [update.rank for update in _pulled(worker, observer)] == [0]


def _pulled(worker: gradwire.Session, observer: gradwire.Session) -> list[gradwire.PeerUpdate]:
    """Return what the observer hears of an update that the worker sends now."""
    worker.push(ONE)
    return pull(observer, 1)


def test_it_leaves_when_its_block_ends_with_an_error(master: LocalMaster) -> None:
    worker_in(master)

    with pytest.raises(ZeroDivisionError), observer_in(master):
        raise ZeroDivisionError

    wait_until(lambda: master.sample("gradwire_observers") == 0, "the observer to be gone")


def test_where_there_is_no_run_it_is_told_so(master: LocalMaster) -> None:
    with pytest.raises(RefusedError, match=naming("no run")) as refused:
        observer_in(master)

    assert refused.value.code == "no_run"


def test_who_comes_with_the_same_key_takes_the_place_of_who_was_there(master: LocalMaster) -> None:
    worker_in(master)
    former = worker_in(master, "gpu2")

    latter = worker_in(master, "gpu2")

    assert str(loss_of(former)) == naming("same key", "gpu2")
    assert latter.rank == 1
