"""Processes that are killed and stand still for a minute: nobody loses anything.

``make soak-processes SECONDS=3600 SEED=7`` does the same for an hour.
"""

from pathlib import Path

import pytest

from gradwire_protocol.messages.kinds import WORKERS_MAX
from support.chaos import Chaos, Plan

REUSED = ("--rejoin-seconds", "20")
"""So that ranks of the dead are given to others while the test lasts."""


@pytest.mark.parametrize(
    "mode",
    [
        "averaging(every=2, round_timeout_seconds=3)",
        "averaging(every=2, optimizer_state=True, round_timeout_seconds=3)",
        "diloco(every=2, bits=0, round_timeout_seconds=3)",
        "diloco(every=4, streams=2, round_timeout_seconds=3)",
        "central(optimizer=adam, gradients_per_update=2, round_timeout_seconds=3)",
    ],
)
def test_half_a_minute_of_kills_in_all_phases_of_a_round(tmp_path: Path, mode: str) -> None:
    plan = Plan(
        seed=2, seconds=30.0, workers=4, mode=mode, kill_seconds=3.0, master_seconds=8.0,
        still_every_seconds=15.0, still_seconds=6.0, masters_min=2,
    )  # fmt: skip

    outcome = Chaos(plan, tmp_path, *REUSED).run()

    outcome.check()
    assert outcome.workers_killed >= 2
    # Not by the metric, which is that of the last master: it may have begun just before the end.
    versions = dict(outcome.accounts)[outcome.ended[0]][-1]["versions"]
    results = sum(last for rank, last in versions.items() if int(rank) >= WORKERS_MAX)
    assert results > 10


@pytest.mark.parametrize("seed", [1])
def test_a_minute_of_kills_costs_nobody_an_update(tmp_path: Path, seed: int) -> None:
    plan = Plan(seed=seed, masters_min=2)

    outcome = Chaos(plan, tmp_path, *REUSED).run()

    outcome.check()
    assert outcome.workers_killed >= 3
    assert outcome.stood_still >= 1
