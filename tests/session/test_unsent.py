"""What a worker has not sent yet: evaluations without it, and what becomes of it at the end."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradwire
from support.local_master import LocalMaster
from support.sessions import HALF, change, finish, join, pull, zeros
from support.tiers import examples

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared", 0.25])
ROUNDING = 2.0**-22


# Evaluating the shared parameters.


@FEEDBACKS
def test_the_shared_parameters_are_there_without_the_residual_which_comes_back(
    master: LocalMaster, feedback: str | float
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


def test_an_evaluation_that_fails_gives_the_residual_back(master: LocalMaster) -> None:
    mine = zeros()
    session = join(master, mine)
    session.push(change(0.25, 0, 0, 0))

    with pytest.raises(LookupError), session.paused(), session.paused(shared=True):
        raise LookupError

    assert mine.tolist() == [0.25, 0, 0, 0]


@FEEDBACKS
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_what_is_pushed_meanwhile_is_added_to_the_residual(
    master: LocalMaster, feedback: str | float, scale: float
) -> None:
    mine, theirs = zeros(), zeros()
    one, other = join(master, mine, feedback=feedback, scale=scale), join(master, theirs)
    one.push(change(0.25, 0.125, 0, 0) / scale)

    with one.paused(shared=True):
        one.push(change(0.25, 0, HALF, 0) / scale)  # with what waits, it would be sent
    pull(other, 1)
    one.push(change(0, 0, 0, 0))
    pull(other, 1)

    assert theirs.tolist() == [HALF, 0, HALF, 0]
    assert one.state_dict()["residual"].tolist() == [0, 0.125, 0, 0]


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
    st.sampled_from(["local", "shared", 0.25]),
)
def test_nothing_is_lost_by_evaluations(
    master: LocalMaster, steps: list[tuple[list[float], bool, bool]], feedback: str | float
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


def test_a_module_is_evaluated_without_being_trained(master: LocalMaster) -> None:
    torch.manual_seed(7)
    module = torch.nn.Linear(3, 2)
    first = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    session = gradwire.join(module, master=master.address, threshold=HALF, optimizer=optimizer)
    shared = [p.detach().clone() for p in module.parameters()]  # rounded to the quantum
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    session.step()
    moved = [p.detach().clone() for p in module.parameters()]

    with session.paused(shared=True):
        for parameter, value in zip(module.parameters(), shared, strict=True):
            assert torch.equal(parameter, value)
    session.step()

    assert session.stats.steps_untrained == 1
    for parameter, value, start in zip(module.parameters(), moved, first, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=0, atol=ROUNDING)
        assert not torch.equal(parameter.detach(), start)
    session.close()


def test_after_the_end_there_is_nothing_to_take_off(master: LocalMaster) -> None:
    mine = zeros()
    session = join(master, mine)
    session.push(change(0.25, 0, 0, 0))
    session.finish()

    with session.paused(shared=True):
        assert mine.tolist() == [0.25, 0, 0, 0]


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
    master: LocalMaster, feedback: str | float
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
    master: LocalMaster, feedback: str | float
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


def test_a_long_run_ends_with_the_shared_parameters(master: LocalMaster) -> None:
    """A fifth of what each step changes waits for ten steps; the rest is sent at once."""
    mine, theirs = zeros(), zeros()
    one = join(master, mine, finish_residual="auto")
    other = join(master, theirs, finish_residual="auto")
    one.wait(2)
    other.wait(2)
    for _ in range(40):
        one.push(change(HALF, 0.05, 0, 0))
    one.push(change(HALF, 0.25, 0, 0))
    shared = [41 * HALF, 4 * HALF, 0, 0]

    finish(one, other)

    assert mine.tolist() == theirs.tolist() == shared


@FEEDBACKS
def test_a_worker_alone_ends_with_what_it_has_trained(
    master: LocalMaster, feedback: str | float
) -> None:
    target = zeros()
    session = join(master, target, feedback=feedback, finish_residual="auto")
    for _ in range(40):
        session.push(change(HALF, 0.0625, 0, 0))
    session.push(change(0, 0.25, 0, 0))

    session.finish()

    assert target.tolist() == [20.0, 2.75, 0, 0]


def test_a_parameter_that_is_not_finite_is_not_dropped_in_silence(master: LocalMaster) -> None:
    mine = zeros()
    session = join(master, mine, finish_residual="drop")
    mine[2] = np.nan

    with pytest.raises(gradwire.DivergedError):
        session.finish()
