"""Admission: who is refused, with which code, and what the refusal says."""

import numpy as np
import pytest

from gradwire_protocol import Role
from gradwire_protocol.layout import Layout, Tensor
from gradwire_protocol.messages import (
    CODEC_VERSION,
    WORKER_ID_BYTES,
    Join,
    RefusalCode,
    Refuse,
    Resume,
    Snapshot,
)
from gradwire_server.admission import refusal, refusal_by_role
from gradwire_server.config import MasterConfig
from gradwire_server.roster import Roster
from gradwire_server.run import Run
from support.members import member, roster_of
from support.peer import join_request


def run_in_progress(name: str = "alpha") -> Run:
    run = Run.begin(name, join_request())
    assert run.assembly is not None
    run.assembly.add(Snapshot(0, np.arange(6, dtype="<i4").tobytes()))
    run.assembly = None
    return run


def reasons(
    join: Join,
    *,
    config: MasterConfig | None = None,
    run: Run | None = None,
    roster: Roster | None = None,
) -> tuple[str, str]:
    """Return code and reason of a refusal that has to come."""
    answer = refusal(join, config or MasterConfig(), run, roster or Roster())
    assert isinstance(answer, Refuse)
    return answer.code, answer.reason


def test_the_first_worker_is_let_in() -> None:
    assert refusal(join_request(), MasterConfig(), None, Roster()) is None


@pytest.mark.parametrize("name", [None, "alpha"])
def test_a_worker_that_fits_the_run_is_let_in(name: str | None) -> None:
    roster = roster_of([member(0), member(1)])

    assert refusal(join_request(run=name), MasterConfig(), run_in_progress(), roster) is None


def test_another_format_of_updates_is_refused() -> None:
    code, reason = reasons(join_request(codec=CODEC_VERSION + 1))

    assert code == RefusalCode.OTHER_CODEC
    assert reason == (
        f"the worker encodes updates in format {CODEC_VERSION + 1}, the master reads "
        f"{CODEC_VERSION}: install the same version of gradwire on both"
    )


def test_a_run_that_the_master_does_not_serve_is_refused() -> None:
    code, reason = reasons(join_request(run="beta"), config=MasterConfig(run="alpha"))

    assert code == RefusalCode.OTHER_RUN
    assert reason == "this master serves run 'alpha' only, not 'beta'"


def test_another_run_than_the_one_in_progress_is_refused() -> None:
    code, reason = reasons(
        join_request(run="beta"), run=run_in_progress("alpha"), roster=roster_of([member(0)])
    )

    assert code == RefusalCode.OTHER_RUN
    assert reason == (
        "run 'alpha' is in progress, not 'beta': wait for its end, or start another master on "
        "another port"
    )


def test_a_worker_beyond_the_limit_is_refused() -> None:
    code, reason = reasons(
        join_request(),
        config=MasterConfig(workers_max=2),
        run=run_in_progress(),
        roster=roster_of([member(0), member(1)]),
    )

    assert code == RefusalCode.RUN_FULL
    assert reason == (
        "2 workers take part, which is the limit: start the master with a larger --workers-max"
    )


def test_a_run_whose_workers_are_leaving_is_refused() -> None:
    run = run_in_progress()
    run.finished = True

    code, reason = reasons(join_request(), run=run, roster=roster_of([member(0)]))

    assert code == RefusalCode.RUN_FINISHED
    assert reason == "run 'alpha' has just finished and its workers are leaving: try again"


def test_a_worker_that_is_back_after_its_run_was_finished_is_told_so() -> None:
    run = run_in_progress()
    run.finished = True
    late = join_request(resume=Resume(rank=1, sequence=3, versions={}, workers=2))

    code, reason = reasons(late, run=run, roster=roster_of([member(0)]))

    assert code == RefusalCode.RUN_FINISHED
    assert reason == (
        "run 'alpha' was finished by its other workers while nothing was heard of this one: what "
        "it had not sent is not in it. They have its parameters; to join again, as a new worker, "
        "begins another run"
    )


def test_a_worker_that_takes_part_already_is_refused() -> None:
    twin = join_request(worker_id=bytes([3]) * WORKER_ID_BYTES)

    code, reason = reasons(twin, run=run_in_progress(), roster=roster_of([member(3)]))

    assert code == RefusalCode.ALREADY_JOINED
    assert reason == "this worker takes part already, as rank 3 (worker3)"


@pytest.mark.parametrize(
    ("tensors", "difference"),
    [
        (
            [("weights", (7,))],
            "'weights' of shape (7,) where the run has 'weights' of shape (6,)",
        ),
        (
            [("bias", (6,))],
            "'bias' of shape (6,) where the run has 'weights' of shape (6,)",
        ),
        (
            [("weights", (2, 3))],
            "'weights' of shape (2, 3) where the run has 'weights' of shape (6,)",
        ),
        (
            [("weights", (6,)), ("bias", (2,))],
            "2 tensors with 8 parameters where the run has 1 with 6",
        ),
    ],
)
def test_another_model_is_refused_and_the_first_difference_is_named(
    tensors: list[tuple[str, tuple[int, ...]]], difference: str
) -> None:
    layout = Layout(tuple(Tensor(name, shape) for name, shape in tensors))

    code, reason = reasons(
        join_request(layout=layout), run=run_in_progress(), roster=roster_of([member(0)])
    )

    assert code == RefusalCode.OTHER_LAYOUT
    assert reason == (
        f"the model differs from that of run 'alpha': {difference}. Train the same model, start "
        "another master, or name another run once this one is over"
    )


def test_every_refusal_can_be_sent() -> None:
    """A run, two tensors, and the reason around them, all with names that people use."""
    long = "module." * 20
    layout = Layout((Tensor(long + "weight", (4096, 4096)),))
    run = Run.begin("r" * 100, join_request(layout=layout))
    other = Layout((Tensor(long + "bias", (4096, 4096)),))

    code, reason = reasons(join_request(layout=other), run=run, roster=roster_of([member(0)]))

    assert Refuse.parse(Refuse(code, reason).pack()) == Refuse(code, reason)


# Roles.


@pytest.mark.parametrize("role", [Role.WORKER, Role.OBSERVER])
def test_a_run_is_open_to_workers_and_observers(role: Role) -> None:
    assert refusal_by_role(role, run_in_progress(), draining=False) is None


def test_a_worker_may_come_where_there_is_no_run_and_an_observer_may_not() -> None:
    unfounded = Run.begin("alpha", join_request())

    for run in (None, unfounded):
        refused = refusal_by_role(Role.OBSERVER, run, draining=False)
        assert refused is not None
        assert refused.code == RefusalCode.NO_RUN
        assert refusal_by_role(Role.WORKER, run, draining=False) is None


@pytest.mark.parametrize("role", [Role.WORKER, Role.OBSERVER])
def test_while_it_is_drained_nobody_is_let_in(role: Role) -> None:
    refused = refusal_by_role(role, run_in_progress(), draining=True)

    assert refused is not None
    assert refused.code == RefusalCode.DRAINING


def test_an_operator_is_told_how_to_give_orders() -> None:
    refused = refusal_by_role(Role.OPERATOR, run_in_progress(), draining=False)

    assert refused is not None
    assert refused.code == RefusalCode.ROLE
    assert "gradwire operate" in refused.reason
