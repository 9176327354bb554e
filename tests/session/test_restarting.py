"""A run that begins anew from checkpoints of its workers: every residual counts once."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import Session
from gradwire.replica.checkpoint_state import brought_digest, unshared_part
from gradwire.settings.training import Feedback
from gradwire_codecs import LocalFeedback, Replica
from gradwire_codecs.arrays import Float32Array
from support.local_master import LocalMaster
from support.sessions import change, finish, join, zeros
from support.waiting import wait_until

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])

QUARTERS = st.lists(st.integers(-8, 8).map(lambda i: i / 4), min_size=4, max_size=4)


@contextmanager
def workers(*targets: Any, feedback: Feedback = "local") -> Iterator[list[Session]]:
    """Let workers join a run of their own in this order: the first founds it."""
    with LocalMaster() as master:
        yield [join(master, target, feedback=feedback) for target in targets]


def saved(*changes: Float32Array, feedback: Feedback = "local") -> list[tuple[Float32Array, Any]]:
    """Return the checkpoints of workers that have made one step each, and know each other's."""
    targets = [zeros() for _ in changes]
    with workers(*targets, feedback=feedback) as sessions:
        for session, each in zip(sessions, changes, strict=True):
            session.push(each)
        elements = sum(session.stats.elements_sent > 0 for session in sessions)
        for session in sessions:
            mine = session.stats.elements_sent > 0
            wait_until(partial(has_pulled, session, elements - mine), "the others' updates")
        return [(t.copy(), s.state_dict()) for t, s in zip(targets, sessions, strict=True)]


def has_pulled(session: Session, n: int) -> bool:
    session.pull()
    return session.stats.updates_applied == n


# Whose residual is in what the run begins with.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("local", "local"),
        ("shared", "shared"),
        ("local", "shared"),
        ("shared", "local"),
    ],
)
def test_who_founds_a_run_from_its_checkpoint_has_its_residual_once(
    before: Feedback, after: Feedback
) -> None:
    """Of two kinds of feedback, that of the checkpoint counts."""
    [(parameters, state)] = saved(change(0.75, 0.125, 0, -0.25), feedback=before)

    with workers(parameters, feedback=after) as [session]:
        session.load_state_dict(state)
        session.finish()

    assert parameters.tolist() == [0.75, 0.125, 0, -0.25]


@FEEDBACKS
def test_of_workers_with_checkpoints_of_their_own_each_brings_its_residual_once(
    feedback: Feedback,
) -> None:
    (one, one_s), (other, other_s) = saved(
        change(0.75, 0.125, 0, 0), change(0, 0.25, 1.125, 0), feedback=feedback
    )

    with workers(one, other, feedback=feedback) as [founder, late]:
        late.load_state_dict(other_s)
        founder.load_state_dict(one_s)
        finish(founder, late)

    assert one.tolist() == other.tolist() == [0.75, 0.375, 1.125, 0]


def test_where_all_begin_with_the_checkpoint_of_one_its_residual_counts_once() -> None:
    [(parameters, state)] = saved(change(0.75, 0.125, 0, 0))
    targets = [parameters.copy() for _ in range(3)]

    with workers(*targets) as sessions:
        for session in sessions:
            session.load_state_dict(state)
        finish(*sessions)

    assert [target.tolist() for target in targets] == [[0.75, 0.125, 0, 0]] * 3


def test_who_founds_a_run_from_the_shared_parameters_adds_its_residual() -> None:
    [(parameters, state)] = saved(change(0.75, 0.125, 0, 0))
    shared = parameters - state["residual"]

    with workers(shared) as [session]:
        session.load_state_dict(state)
        session.finish()

    assert shared.tolist() == [0.75, 0.125, 0, 0]


# The rule, whatever the values.


@given(shared=QUARTERS, residual=QUARTERS, other=QUARTERS, is_founder=st.booleans())
@settings(deadline=None)
def test_shared_and_residual_together_are_what_they_were(
    shared: list[float], residual: list[float], other: list[float], is_founder: bool
) -> None:
    mine = change(*shared) + change(*residual)
    founders = mine.copy() if is_founder else change(*other)
    run = Replica.from_parameters(founders, -24)
    digest = f"{Replica.from_parameters(change(*shared), -24).digest():016x}"

    brought = brought_digest(LocalFeedback(mine.copy(), run))
    rest = unshared_part(change(*residual), digest, brought)

    begins_with_ours = founders.tolist() == mine.tolist()
    sum_now = founders + rest
    np.testing.assert_array_equal(sum_now, mine if begins_with_ours else founders + residual)
