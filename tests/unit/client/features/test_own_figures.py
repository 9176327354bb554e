"""What a worker reports of itself, for people who watch the run."""

from math import isnan

import pytest

from gradwire.features.own_figures import EVERY_SECONDS, PREFIX, OwnFigures
from gradwire.worker.scalars import Batch
from support.participants import Rig

ALWAYS = {
    "steps_per_second",
    "encoded_bytes_per_second",
    "overhead_ratio",
    "staleness_updates",
    "residual_age_steps",
}


def reported(rig: Rig) -> dict[str, tuple[int, float]]:
    """Return what waits to be sent: step and value by name."""
    batch = rig.participant.worker.scalars._take_next()
    assert isinstance(batch, Batch)
    return {point.name.removeprefix(PREFIX): (point.step, point.value) for point in batch.points}


def test_a_worker_reports_once_a_second_and_not_at_every_step() -> None:
    rig = Rig()
    figures = OwnFigures(rig.participant)
    found = []
    for seconds in (0.5, 0.5, 0.0, 0.5):
        rig.now += seconds * EVERY_SECONDS
        figures.after_step()
        found.append(reported(rig).keys())

    assert found == [set(), ALWAYS, set(), set()]


def test_rates_are_those_since_the_last_report() -> None:
    rig = Rig()
    figures, tally = OwnFigures(rig.participant), rig.participant.tally
    tally.updates_sent, tally.density, tally.threshold = 1, 0.25, 0.5
    for steps, seconds, rate in ((10, 2.0, 5.0), (16, 4.0, 1.5)):
        tally.steps, tally.bytes_encoded, tally.encode_seconds = steps, 100 * steps, 0.01 * steps
        rig.now += seconds
        figures.after_step()

        found = reported(rig)

        assert found["steps_per_second"] == pytest.approx((steps, rate))
        assert found["encoded_bytes_per_second"] == pytest.approx((steps, 100 * rate))
        assert found["overhead_ratio"] == pytest.approx((steps, 0.01 * rate))
        assert (found["density_ratio"], found["threshold"]) == ((steps, 0.25), (steps, 0.5))


def test_a_worker_that_may_wait_says_so_and_for_how_much_of_the_time() -> None:
    rig = Rig()
    figures, tally = OwnFigures(rig.participant), rig.participant.tally
    found = []
    for bound, waited, rank in ((None, 0.0, None), (2, 1.5, 3), (2, 2.0, 3), (None, 2.0, 3)):
        tally.staleness_bound, tally.wait_seconds, tally.waited_for = bound, waited, rank
        rig.now += 2 * EVERY_SECONDS
        figures.after_step()
        found.append({name: value for name, (_, value) in reported(rig).items()})

    assert found[0].keys() == ALWAYS
    assert [each["wait_ratio"] for each in found[1:]] == pytest.approx([0.75, 0.25, 0.0])
    assert [each["staleness_bound"] for each in found[1:3]] == [2, 2]
    assert [each["waited_for"] for each in found[1:]] == [3, 3, 3]
    assert isnan(found[3]["staleness_bound"]), "none now"
