"""The one warning about momentum that nobody lowers."""

import pytest

from gradwire.features.momentum_advice import LOOK_EVERY, STEPS_MIN, MomentumAdvice
from gradwire.optimizer.momentum import Lag
from support.wording import naming

NAME = "gradwire.session"


def steps(lag: float, count: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    part = MomentumAdvice(lambda: Lag(residual=lag))
    with caplog.at_level("WARNING", NAME):
        for _ in range(count):
            part.after_step()
    return [record.getMessage() for record in caplog.records]


def test_a_large_delay_is_said_once_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    [said] = steps(4.0, 10 * STEPS_MIN, caplog)

    assert said == naming("4.0 steps late", "momentum of 0.9", "1.1 times", "optimizer=optimizer")
    assert said == naming("0.83 is right now for the first of Adam's betas", "0.89 for SGD's")


def test_nothing_is_said_of_a_small_one(caplog: pytest.LogCaptureFixture) -> None:
    assert steps(0.9, 10 * STEPS_MIN, caplog) == []


def test_nothing_is_said_before_delays_have_come_to_rest(caplog: pytest.LogCaptureFixture) -> None:
    assert steps(40.0, STEPS_MIN - 1, caplog) == []


def test_a_delay_that_comes_later_is_said_then(caplog: pytest.LogCaptureFixture) -> None:
    lags = iter([0.0] * 3 + [5.0] * 3)
    part = MomentumAdvice(lambda: Lag(network=next(lags)))
    with caplog.at_level("WARNING", NAME):
        for _ in range(STEPS_MIN + 3 * LOOK_EVERY):
            part.after_step()

    assert len(caplog.records) == 1
