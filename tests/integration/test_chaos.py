"""Processes that are killed and stand still for a minute: nobody loses anything.

``make soak-processes SECONDS=3600 SEED=7`` does the same for an hour.
"""

from pathlib import Path

import pytest

from support.chaos import Chaos, Plan

pytestmark = pytest.mark.timeout(300)

REUSED = ("--rejoin-seconds", "20")
"""So that ranks of the dead are given to others while the test lasts."""


@pytest.mark.parametrize("seed", [1])
def test_a_minute_of_kills_costs_nobody_an_update(tmp_path: Path, seed: int) -> None:
    plan = Plan(seed=seed, masters_min=2)

    outcome = Chaos(plan, tmp_path, *REUSED).run()

    outcome.check()
    assert outcome.workers_killed >= 3
    assert outcome.stood_still >= 1
