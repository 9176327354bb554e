"""Long histories with every fault: many acts, and crowds of workers."""

import pytest

from support.playing import play


@pytest.mark.deep("long histories")
@pytest.mark.seeds(16)
def test_long_histories(seed: int) -> None:
    play(seed, "long")


@pytest.mark.deep("histories with 50 and 200 workers")
@pytest.mark.seeds(4)
def test_histories_with_50_and_200_workers(seed: int) -> None:
    history = play(seed, "crowd")

    assert len(history.workers) >= history.plan.workers >= 50
