"""What a worker reports of itself, for people who watch the run."""

import pytest

from gradwire.features.own_figures import EVERY_SECONDS, PREFIX, OwnFigures
from gradwire_protocol.messages.operating.scalars import POINT
from support.participants import Rig

ALWAYS = {
    "steps_per_second",
    "encoded_bytes_per_second",
    "overhead_ratio",
    "staleness_updates",
    "residual_age_steps",
    "delay_steps",
}


def reported(rig: Rig) -> dict[str, tuple[int, float]]:
    """Return what waits to be sent: step and value by name."""
    waiting = rig.participant.worker.logged.scalars._next(rig.now)
    if waiting is None:
        return {}
    message, _ = waiting
    assert message.array.dtype == POINT
    return {
        message.names[point["series"]]: (int(point["step"]), float(point["value"]))
        for point in message.array
    }


def test_a_worker_reports_once_a_second_and_not_at_every_step() -> None:
    rig = Rig()
    figures = OwnFigures([rig.participant])

    rig.now += 0.5 * EVERY_SECONDS
    figures.after_step()
    assert reported(rig) == {}

    rig.now += 0.5 * EVERY_SECONDS
    figures.after_step()
    figures.after_step()
    assert reported(rig).keys() == {PREFIX + name for name in ALWAYS}

    rig.now += 0.5 * EVERY_SECONDS
    figures.after_step()
    assert reported(rig) == {}


def test_rates_are_those_since_the_last_report() -> None:
    rig = Rig()
    figures, tally = OwnFigures([rig.participant]), rig.participant.tally
    for steps, seconds, rate in ((10, 2.0, 5.0), (16, 4.0, 1.5)):
        tally.steps, tally.bytes_encoded, tally.encode_seconds = steps, 100 * steps, 0.01 * steps
        rig.now += seconds
        figures.after_step()

        found = reported(rig)

        assert found[PREFIX + "steps_per_second"] == pytest.approx((steps, rate))
        assert found[PREFIX + "encoded_bytes_per_second"] == pytest.approx((steps, 100 * rate))
        assert found[PREFIX + "overhead_ratio"] == pytest.approx((steps, 0.01 * rate))


def test_what_there_is_not_is_not_reported() -> None:
    rig = Rig()
    figures, tally = OwnFigures([rig.participant]), rig.participant.tally
    rig.now += EVERY_SECONDS
    figures.after_step()
    assert PREFIX + "density_ratio" not in reported(rig)

    tally.updates_sent, tally.density, tally.threshold, tally.momentum = 1, 0.25, 0.5, 0.9
    rig.now += EVERY_SECONDS
    figures.after_step()

    found = {name: value for name, (_, value) in reported(rig).items()}
    assert found[PREFIX + "density_ratio"] == 0.25
    assert found[PREFIX + "threshold"] == 0.5
    assert found[PREFIX + "momentum"] == 0.9


def test_with_several_masters_the_figures_are_those_of_all_parts() -> None:
    small, large = Rig(elements=4), Rig(elements=12)
    figures = OwnFigures([small.participant, large.participant])
    for rig, density, threshold in ((small, 0.5, 0.1), (large, 0.1, 0.3)):
        tally = rig.participant.tally
        tally.steps, tally.bytes_encoded, tally.encode_seconds = 3, 100, 0.25
        tally.updates_sent, tally.density, tally.threshold = 1, density, threshold
    small.now += 2 * EVERY_SECONDS
    figures.after_step()

    found = {name.removeprefix(PREFIX): value for name, (_, value) in reported(small).items()}

    assert reported(large) == {}
    assert found["steps_per_second"] == pytest.approx(1.5)
    assert found["encoded_bytes_per_second"] == pytest.approx(100.0)
    assert found["overhead_ratio"] == pytest.approx(0.25)
    assert found["density_ratio"] == pytest.approx(0.2)
    assert found["threshold"] == pytest.approx(0.3)
