"""The one warning about momentum that nobody lowers."""

import pytest

from gradwire.features.log import STEPS_MIN, MomentumAdvice
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
