"""A session with an observer's key: it receives, sends nothing, and nobody waits for it."""

import pytest

import gradwire
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol import Role
from support.local_master import LocalMaster
from support.sessions import (
    RUN_KEY,
    change,
    join,
    stepping_changes,
    zeros,
)
from support.waiting import wait_until

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
