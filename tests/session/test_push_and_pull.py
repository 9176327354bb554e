"""Loops that push and pull instead of calling `step`: the session's parts take part in them too."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwire import Session
from gradwire.participant.feature import Feature
from gradwire_protocol import Role
from support.local_master import LocalMaster
from support.sessions import (
    HALF,
    RUN_KEY,
    change,
    finish,
    join,
    membership_of,
    norm_of,
    participant_of,
    set_buffers,
    variance_of,
    zeros,
)
from support.waiting import PROCESS, wait_until


class Recorder(Feature):
    """Notes what it is called for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_training = True

    def before_push(self) -> None:
        self.calls.append("before")

    def has_trained(self) -> bool:
        return self.is_training

    def after_step(self) -> None:
        self.calls.append("stepped")


def recorded(session: Session) -> Recorder:
    """Give a session a part that is called behind all others."""
    recorder = Recorder()
    participant_of(session).features = (*participant_of(session).features, recorder)
    return recorder


def push_and_pull(session: Session) -> None:
    session.push()
    session.pull()


# What the parts are called for.


def test_where_nothing_was_trained_nothing_is_pushed_but_what_is_given(
    master: LocalMaster,
) -> None:
    target = zeros()
    with join(master, target) as one:
        recorded(one).is_training = False
        target[0] += 1.0

        assert one.push() == 0
        assert one.stats.steps_untrained == 1
        assert one.push(change(0, 1.0, 0, 0)) == 2


ACTIONS: dict[str, Callable[[Session], object]] = {
    "push": lambda session: session.push(),
    "change": lambda session: session.push(change(HALF, 0, 0, 0)),
    "pull": lambda session: session.pull(),
    "step": lambda session: session.step(),
}


@pytest.fixture(scope="module")
def shared_session() -> Iterator[Session]:
    with LocalMaster() as running, join(running) as session:
        yield session


@given(names=st.lists(st.sampled_from(sorted(ACTIONS)), max_size=12))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_called_every_push_is_ended_once_by_what_pulls_next(
    shared_session: Session, names: list[str]
) -> None:
    shared_session.pull()
    recorder = recorded(shared_session)

    for name in names:
        ACTIONS[name](shared_session)

    expected, is_open = [], False
    for name in names:
        pushes, pulls = name != "pull", name in ("pull", "step")
        expected += ["before"] * pushes
        is_open |= pushes
        expected += ["stepped"] * (is_open and pulls)
        is_open &= not pulls
    participant_of(shared_session).features = participant_of(shared_session).features[:-1]
    assert recorder.calls == expected


# What the parts do then.


def test_buffers_are_averaged_between_the_steps(master: LocalMaster) -> None:
    norms = [norm_of(1.0), norm_of(1.0)]
    one, other = (join(master, norm, buffer_steps=2) for norm in norms)
    set_buffers(norms[1], 3.0)
    for session in (one, other):
        push_and_pull(session)
    one.push()
    wait_until(lambda: master.sample("gradwire_buffers_relayed_total") == 1, "its buffers")

    other.push()
    assert variance_of(norms[1]) == [3.0, 3.0]
    other.pull()

    assert variance_of(norms[1]) == [2.0, 2.0]


def test_who_pushes_and_never_pulls_ends_with_what_all_have(master: LocalMaster) -> None:
    norms = [norm_of(1.0), norm_of(1.0)]
    one, other = (join(master, norm, buffer_steps=1, staleness_bound=1) for norm in norms)
    set_buffers(norms[1], 3.0)

    for session in (one, other):
        for _ in range(4):
            session.push()
    assert [variance_of(norm) for norm in norms] == [[1.0] * 2, [3.0] * 2]
    assert one.stats.steps_waited == other.stats.steps_waited == 0
    finish(one, other)

    assert [variance_of(norm) for norm in norms] == [[2.0] * 2] * 2
    assert one.digest() == other.digest()


def test_an_observer_that_only_pulls_gets_the_buffers(keyed_master: LocalMaster) -> None:
    keys = [RUN_KEY.worker_key(role.name, role) for role in (Role.WORKER, Role.OBSERVER)]
    watcher = norm_of(1.0)
    worker = join(keyed_master, norm_of(3.0), key=keys[0], buffer_steps=1)
    observer = join(keyed_master, watcher, key=keys[1], buffer_steps=1)
    push_and_pull(worker)

    def has_it() -> bool:
        observer.pull()
        return variance_of(watcher) == [3.0, 3.0]

    wait_until(has_it, "the worker's buffers")


def test_who_pushes_and_pulls_waits_for_who_is_too_far_behind(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.session.assembly.STALENESS_TIMEOUT_SECONDS", PROCESS)
    one, other = (join(master, staleness_bound=1) for _ in range(2))
    wait_until(lambda: bool(membership_of(one).clocks.latest), "one to hear of the other")
    with ThreadPoolExecutor(1) as pool:
        while one.stats.steps_waited == 0:
            one.push(change(HALF, 0, 0, 0))
            assert one.stats.steps_waited == 0  # a push never waits
            pulled = pool.submit(one.pull)
            wait_until(lambda: pulled.done() or one.stats.steps_waited > 0, "a pull")  # noqa: B023

        def is_let_go() -> bool:
            other.push(change(HALF, 0, 0, 0))  # which never waits
            return pulled.done()

        assert not pulled.done()
        wait_until(is_let_go, "the one to go on")

    assert one.stats.steps_waited == 1
