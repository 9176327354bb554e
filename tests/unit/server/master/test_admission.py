"""Admission: who is refused, with which code, and what the refusal says."""

from typing import Any

import numpy as np
import pytest

from gradwire_protocol import Role
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, RefusalCode, Refuse
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_server.config import MasterConfig
from gradwire_server.master.admission import refusal, refusal_by_role
from gradwire_server.master.master import Master
from gradwire_server.metrics import RunMetrics
from gradwire_server.state.roster import Roster
from gradwire_server.state.run import Run
from gradwire_server.state.state import State
from support.members import member, roster_of
from support.peer import join_request, resume_of
from support.wording import naming


def run_in_progress(name: str = "alpha", *, finished: bool = False) -> Run:
    run = Run.begin(name, join_request())
    assert run.assembly is not None
    run.assembly.accept_block(Snapshot(0, np.arange(6, dtype="<i4").tobytes()))
    run.assembly = None
    run.finished = finished
    return run


def reasons(
    join: Join,
    *,
    config: MasterConfig | None = None,
    run: Run | None = None,
    roster: Roster | None = None,
) -> tuple[str, str]:
    """Return code and reason of a refusal that has to come."""
    answer = refusal(join, state_of(config, run, roster), run)
    assert isinstance(answer, Refuse)
    return answer.code, answer.reason


def state_of(
    config: MasterConfig | None = None, run: Run | None = None, roster: Roster | None = None
) -> State:
    """Return the state of a master that serves this run."""
    state = Master(config or MasterConfig(), RunMetrics(), run=run).state
    state.roster = roster or Roster()
    return state


@pytest.mark.parametrize(
    ("asked", "code", "named"),
    [
        pytest.param(
            {"join": join_request(codec=CODEC_VERSION + 1)},
            RefusalCode.OTHER_CODEC,
            (CODEC_VERSION + 1, CODEC_VERSION, "install"),
            id="another format of updates",
        ),
        pytest.param(
            {"join": join_request(run="beta"), "config": MasterConfig(run="alpha")},
            RefusalCode.OTHER_RUN,
            ("alpha", "beta"),
            id="a run that the master does not serve",
        ),
        pytest.param(
            {
                "join": join_request(run="beta"),
                "run": run_in_progress("alpha"),
                "roster": roster_of([member(0)]),
            },
            RefusalCode.OTHER_RUN,
            ("alpha", "beta", "standby", "another master"),
            id="another run than the one in progress",
        ),
        pytest.param(
            {
                "join": join_request(),
                "config": MasterConfig(workers_max=2),
                "run": run_in_progress(),
                "roster": roster_of([member(0), member(1)]),
            },
            RefusalCode.RUN_FULL,
            (2, "--workers-max"),
            id="a worker beyond the limit",
        ),
        pytest.param(
            {
                "join": join_request(),
                "run": run_in_progress(finished=True),
                "roster": roster_of([member(0)]),
            },
            RefusalCode.RUN_FINISHED,
            ("alpha", "try again"),
            id="a run whose workers are leaving",
        ),
        pytest.param(
            {
                "join": join_request(resume=resume_of(1, 3)),
                "run": run_in_progress(finished=True),
                "roster": roster_of([member(0)]),
            },
            RefusalCode.RUN_FINISHED,
            ("alpha", "join again", "another run"),
            id="a worker that is back after its run was finished",
        ),
        pytest.param(
            {
                "join": join_request(worker_id=bytes([3]) * WORKER_ID_BYTES),
                "run": run_in_progress(),
                "roster": roster_of([member(3)]),
            },
            RefusalCode.ALREADY_JOINED,
            ("rank 3 (worker3)",),
            id="a worker that takes part already",
        ),
    ],
)
def test_who_cannot_be_let_in_is_told_why(
    asked: dict[str, Any], code: RefusalCode, named: tuple[object, ...]
) -> None:
    assert reasons(**asked) == (code, naming(*named))


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        (
            [("weights", (7,))],
            ("'weights'", "(7,)", "(6,)"),
        ),
        (
            [("bias", (6,))],
            ("'bias'", "'weights'", "(6,)"),
        ),
        (
            [("weights", (2, 3))],
            ("'weights'", "(2, 3)", "(6,)"),
        ),
        (
            [("weights", (6,)), ("bias", (2,))],
            (2, 8, 1, 6),
        ),
    ],
)
def test_another_model_is_refused_and_the_first_difference_is_named(
    tensors: list[tuple[str, tuple[int, ...]]], named: tuple[object, ...]
) -> None:
    layout = Layout(tuple(Tensor(name, shape) for name, shape in tensors))

    assert reasons(
        join_request(layout=layout), run=run_in_progress(), roster=roster_of([member(0)])
    ) == (RefusalCode.OTHER_LAYOUT, naming("alpha", *named))


# Roles.


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
