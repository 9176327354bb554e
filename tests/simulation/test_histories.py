"""Short histories with every fault, each determined by its seed; the long ones are next door.

What happens is in `support.plans` and `support.faults`, what has to be true in
`support.quiescence`. One that fails says its seed, and ``python tests/simulation SEED`` shows it.
"""

import pytest

from support.faults import Fault
from support.plans import draw
from support.playing import play
from support.tiers import count

HISTORIES = count(2_000, quick=100, of="histories with every fault")
BATCH = 20
"""In one test, as pytest itself takes some milliseconds for each."""


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_whatever_goes_wrong_all_come_to_the_same_bits_and_nothing_is_lost(first: int) -> None:
    for seed in range(first, first + BATCH):
        play(seed)


BURSTY = count(500, quick=20, of="histories with losses in bursts")


@pytest.mark.parametrize("first", range(0, BURSTY, BATCH))
def test_bursts_of_losses_change_nothing_of_it(first: int) -> None:
    for seed in range(first, first + BATCH):
        play(seed, bursty=True)


def test_a_seed_determines_its_history() -> None:
    one, other = play(5), play(5)

    assert one.network.trace == other.network.trace
    assert one.trace.lines() == other.trace.lines()


def test_everything_that_can_go_wrong_does() -> None:
    """The plans of all seeds have every fault, and every network."""
    plans = [draw(seed) for seed in range(2_000)]
    faults = {type(f).__name__ for plan in plans for act in plan.acts for f in act.faults}

    assert faults == {kind.__name__ for kind in Fault.__subclasses__()}
    assert any(plan.watched for plan in plans)
    assert {plan.staleness_bound for plan in plans} == {"auto", "off", 1, 2, 4}
