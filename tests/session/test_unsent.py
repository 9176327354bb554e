"""What a worker has not sent yet: evaluations without it, and what becomes of it at the end."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradwire
from gradwire.settings.training import Feedback
from support.local_master import LocalMaster
from support.sessions import HALF, change, finish, join, zeros
from support.tiers import examples

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])


# Evaluating the shared parameters.


@FEEDBACKS
def test_the_shared_parameters_are_there_without_the_residual_which_comes_back(
    master: LocalMaster, feedback: Feedback
) -> None:
    mine = zeros()
    session = join(master, mine, feedback=feedback)
    session.push(change(HALF + 0.25, 0.125, -0.25, 0))
    before, residual = mine.copy(), session.state_dict()["residual"]

    with session.paused(shared=True):
        inside = mine.copy()

    assert inside.tolist() == [HALF, 0, 0, 0]
    assert mine.tolist() == before.tolist()
    assert session.state_dict()["residual"].tolist() == residual.tolist() == [0.25, 0.125, -0.25, 0]


@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["local", "shared"]),
)
def test_nothing_is_lost_by_evaluations(
    master: LocalMaster, steps: list[tuple[list[float], bool, bool]], feedback: Feedback
) -> None:
    """What the replica has and what waits are together all that was changed."""
    mine = zeros()
    session = join(master, mine, feedback=feedback, finish_residual="drop")
    total = mine.astype(np.float64)

    for values, evaluates, trains_inside in steps:
        if trains_inside:
            with session.paused(shared=True):
                session.push(change(*values))
        else:
            session.push(change(*values))
        total += values
        if evaluates:
            with session.paused(shared=True):
                pass

    residual = session.state_dict()["residual"].astype(np.float64)
    with session.paused(shared=True):
        shared = mine.astype(np.float64)
    largest = np.float32(max(1.0, np.abs(total).max()))
    assert np.abs(shared + residual - total).max() < 4 * len(steps) * np.spacing(largest)
    session.finish()  # so that the next example has a run of its own


def test_finishing_inside_of_an_evaluation_is_refused(master: LocalMaster) -> None:
    mine = zeros()
    session = join(master, mine)
    session.push(change(0.25, 0, 0, 0))

    with session.paused(shared=True), pytest.raises(gradwire.UsageError, match="leave that block"):
        session.finish()
    session.finish()

    assert mine.tolist() == [0.25, 0, 0, 0]


# The end.


@FEEDBACKS
def test_a_residual_that_is_to_be_dropped_is_in_nobody_s_parameters(
    master: LocalMaster, feedback: Feedback
) -> None:
    mine, theirs = zeros(), zeros()
    one = join(master, mine, feedback=feedback, finish_residual="drop")
    other = join(master, theirs, feedback=feedback)
    one.push(change(HALF + 0.25, 0.25, 0, 0))
    other.push(change(0, 0.125, 0, 0))

    finish(one, other)

    assert mine.tolist() == theirs.tolist() == [HALF, 0.125, 0, 0]
    assert one.digest() == other.digest()
    assert one.stats.updates_sent == 1, "nothing at the end"
    assert (one.stats.final_residual_portion, other.stats.final_residual_portion) == (0.0, 1.0)


@FEEDBACKS
def test_workers_of_a_short_run_end_with_the_mean_of_their_own_parameters(
    master: LocalMaster, feedback: Feedback
) -> None:
    mine, theirs = zeros(), zeros()
    one = join(master, mine, feedback=feedback, finish_residual="auto")
    other = join(master, theirs, feedback=feedback, finish_residual="auto")
    one.wait(2)
    other.wait(2)
    one.push(change(0.25, 0.25, 0, 0))
    other.push(change(0, 0.125, -0.25, 0))

    before = one.stats.final_residual_portion
    finish(one, other)

    assert before is None
    assert one.stats.final_residual_portion == 0.5
    assert mine.tolist() == theirs.tolist() == [0.125, 0.1875, -0.125, 0]
    assert one.digest() == other.digest()
