"""When training stops early: after which score, why, and that all hear of it once."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import EarlyStopping, UsageError
from support.wording import naming

SCORES = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


def stops_after(scores: list[float], **limits: Any) -> tuple[int | None, EarlyStopping]:
    """Return after how many scores it stops, if it does."""
    early = EarlyStopping(**limits)
    for number, score in enumerate(scores, 1):
        if early.note(score):
            return number, early
    return None, early


@pytest.mark.parametrize(
    ("scores", "limits", "number", "why"),
    [
        ([3, 2, 2, 2, 1], {"patience": 1}, 4, ["no better", "2"]),
        ([3, 2, 2, 2, 1], {"patience": 2}, None, []),
        ([3, 2.9, 2.8, 2.7], {"patience": 1, "minimum_improvement": 0.5}, 3, ["3", "0.5"]),
        ([1, 2, 1, 1], {"patience": 1, "larger_is_better": True}, 4, ["2"]),
        ([3, 1.5, 1], {"target": 1.5}, 2, ["1.5", "target"]),
        ([0.1, 0.5, 0.9], {"target": 0.8, "larger_is_better": True}, 3, ["0.9", "0.8"]),
        ([3, 4, 5], {"maximum_scores": 2}, 2, ["2", "3"]),
        ([3, nan, 1], {"target": 0.0}, 2, ["nan"]),
        ([inf], {"target": 0.0}, 1, ["inf"]),
    ],
)
def test_it_stops_at_its_limit_and_says_which(
    scores: list[float], limits: dict[str, Any], number: int | None, why: list[str]
) -> None:
    stopped, early = stops_after(scores, **limits)

    assert stopped == number
    if number is None:
        assert early.reason is None
    else:
        assert early.reason == naming(*why)


def test_it_stops_when_the_time_is_over() -> None:
    now = 100.0
    early = EarlyStopping(maximum_seconds=60.0, clock=lambda: now)
    assert not early.note(3.0)

    now = 160.0

    assert early.note(4.0)
    assert early.reason == naming("60 s", "3")


@given(scores=SCORES, larger=st.booleans())
def test_the_best_score_is_the_best_and_its_moment_is_told(
    scores: list[float], larger: bool
) -> None:
    early = EarlyStopping(maximum_scores=len(scores) + 1, larger_is_better=larger)
    kept = None
    for score in scores:
        early.note(score)
        if early.is_best:
            kept = score

    best = max(scores) if larger else min(scores)
    assert early.best == kept == best
    assert early.best_at == scores.index(best) + 1


@given(scores=SCORES, patience=st.integers(0, 5))
def test_it_is_as_patient_as_it_was_told_to_be(scores: list[float], patience: int) -> None:
    stopped, early = stops_after(scores, patience=patience)

    if stopped is None:
        assert len(scores) - early.best_at <= patience
    else:
        assert stopped - early.best_at == patience + 1


def test_a_reason_is_told_once_and_that_of_another_worker_counts() -> None:
    said: list[str] = []
    heard: list[str] = []
    early = EarlyStopping(target=1.0, tell=said.append, told=lambda: heard[0] if heard else None)
    assert not early.note(2.0)
    heard.append("an operator has ordered it")

    assert early.note(0.5)
    assert early.note(0.5)

    assert (said, early.reason) == ([], "an operator has ordered it")
    alone = EarlyStopping(target=1.0, tell=said.append)
    assert alone.note(1.0)
    assert alone.note(9.0)
    assert said == [alone.reason]


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({}, ["patience", "target", "maximum_seconds", "maximum_scores"]),
        ({"minimum_improvement": 0.1}, ["without a limit"]),
        ({"patience": -1}, ["patience=-1", "0"]),
        ({"maximum_scores": 0}, ["maximum_scores=0", "1"]),
        ({"maximum_seconds": nan}, ["maximum_seconds=nan"]),
        ({"target": 1.0, "minimum_improvement": -0.5}, ["minimum_improvement=-0.5"]),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        EarlyStopping(**limits)

    assert str(refused.value) == naming(*named)
