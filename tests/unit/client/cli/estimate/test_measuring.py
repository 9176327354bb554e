"""What is made of the numbers of a real run; `tests/integration` has one."""

from typing import Any

import pytest

from gradwire.cli.estimate.measuring import mean_figures, measure, worker_figures
from gradwire.errors import UsageError
from support.wording import naming

NAMES = (
    "steps", "steps_deferred", "updates_sent", "updates_applied", "elements_sent",
    "bytes_encoded", "encode_seconds", "apply_seconds",
)  # fmt: skip


def moment(seconds: float, *numbers: float, step: float | None = 0.01) -> dict[str, Any]:
    return {
        "parameters": 1000,
        "seconds": seconds,
        "step_seconds": step,
        "session_seconds": 0.002,
        "stats": dict(zip(NAMES, numbers, strict=True)),
    }


FIRST = moment(1, 100, 0, 100, 90, 90_000, 50_000, 1.0, 0.9)
HALF = moment(5, 500, 0, 500, 450, 100_000, 60_000, 3.0, 1.9)
LAST = moment(10, 1000, 100, 900, 850, 104_000, 62_000, 4.2, 2.3)


def test_what_was_before_half_of_the_time_does_not_count() -> None:
    found = worker_figures([FIRST, HALF, LAST])

    assert found.density == pytest.approx(4000 / 400 / 1000)
    assert found.update_bytes == pytest.approx(2000 / 400)
    assert found.encode_seconds == pytest.approx(1.2 / 400)
    assert found.apply_seconds == pytest.approx(0.4 / 400)
    assert found.step_seconds == 0.01


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ([], "session.step"),
        ([moment(1, 1, 0, 1, 0, 1, 1, 0.1, 0.0, step=None)], "two steps"),
        ([moment(1, 9, 0, 0, 0, 0, 0, 0.1, 0.0)], "no update"),
    ],
)
def test_too_little_is_refused(found: list[dict[str, Any]], named: str) -> None:
    with pytest.raises(UsageError, match=naming(named)):
        worker_figures(found)


def test_workers_count_alike_and_who_applied_nothing_says_nothing_about_it() -> None:
    one = worker_figures([FIRST])
    other = worker_figures([moment(2, 100, 0, 100, 0, 30_000, 50_000, 3.0, 0.0)])

    found = mean_figures([one, other])

    assert found.density == pytest.approx(0.6)
    assert found.encode_seconds == pytest.approx(0.02)
    assert found.apply_seconds == one.apply_seconds
    assert found.steps == 200


def test_a_script_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=naming("--measure", "no.py")):
        measure(["no.py"], 1.0, print)
