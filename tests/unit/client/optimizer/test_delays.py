"""Delays: measured of queues whose delays are known."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.optimizer.delays import (
    BUCKETS,
    RECENT_UPDATES,
    Delays,
    Histogram,
    RecentMean,
    excess_steps,
)


def of_lockstep(workers: int, *, late: int) -> Delays:
    """Return what worker 0 measures if all step at once and updates come `late` steps late."""
    random, delays = np.random.default_rng(0), Delays()
    versions = np.zeros((workers, workers), int)  # by receiver: the last update of each origin
    under_way: deque[list[tuple[int, int, int]]] = deque()
    for step in range(1, 100 + 8 * RECENT_UPDATES // (workers - 1)):
        sent = [
            (rank, step, int(versions[rank].sum() - versions[rank, rank]))
            for rank in range(workers)
        ]
        versions[np.arange(workers), np.arange(workers)] = step
        under_way.append(sent)
        if len(under_way) <= late:
            continue
        arriving = under_way.popleft()
        for receiver in range(workers):
            for at in random.permutation(workers):
                rank, sequence, based_on = arriving[at]
                if rank == receiver:
                    continue
                stale = int(versions[receiver].sum() - versions[receiver, rank]) - based_on
                if receiver == 0:
                    delays.note_update(rank, stale)
                versions[receiver, rank] = sequence
    return delays


@pytest.mark.parametrize("late", [0, 1, 4, 16])
@pytest.mark.parametrize("workers", [2, 4, 16])
def test_the_network_delay_is_that_of_a_simulated_lockstep(workers: int, late: int) -> None:
    delays = of_lockstep(workers, late=late)

    assert delays.staleness == pytest.approx(workers / 2 + late * workers, rel=0.02)
    assert delays.network_delay_steps(workers) == pytest.approx(late, abs=0.02)
    assert set(delays.staleness_by_rank) == set(range(1, workers))


@given(workers=st.integers(2, 1000), steps=st.floats(0, 1000))
def test_each_step_of_delay_adds_an_update_of_each_worker(workers: int, steps: float) -> None:
    assert excess_steps(workers / 2 + steps * workers, workers) == pytest.approx(steps, abs=1e-9)
    assert excess_steps(workers / 3, workers) == 0.0


def note_queue(delays: Delays, wait: int, steps: int, *, every: int = 1) -> None:
    """Note a change of 1 in every step, which leaves `wait` steps later, if it may leave then."""
    waiting: deque[int] = deque()
    for step in range(steps):
        waiting.append(step)
        sent = 0
        while step % every == 0 and waiting and waiting[0] <= step - wait:
            waiting.popleft()
            sent += 1
        delays.note_step(float(sent), float(len(waiting)) if delays.wants_residual else None)


@pytest.mark.parametrize("wait", [0, 1, 7, 40])
def test_the_residual_is_as_old_as_what_leaves_it_was(wait: int) -> None:
    delays = Delays()

    note_queue(delays, wait, 600)

    assert delays.residual_age_steps == pytest.approx(wait, rel=0.02)


@pytest.mark.parametrize("every", [2, 4, 8, 16])
def test_steps_that_send_nothing_count(every: int) -> None:
    delays = Delays()

    note_queue(delays, 20, 1600, every=every)

    # What may leave after 20 steps waits, on average, for half the steps between two updates.
    assert delays.residual_age_steps == pytest.approx(20 + (every - 1) / 2, rel=every / 64)


def test_a_residual_that_is_not_finite_says_nothing() -> None:
    delays = Delays()
    delays.note_step(1.0, 1.0)

    delays.note_step(1.0, float("nan"))

    assert delays.residual_age_steps == 1.0


def test_the_age_follows_what_changes() -> None:
    delays = Delays()
    note_queue(delays, 30, 600)

    for _ in range(600):
        delays.note_step(1.0, 2.0 if delays.wants_residual else None)

    assert delays.residual_age_steps == pytest.approx(2.0, rel=0.02)


def test_the_longer_a_run_the_less_its_residual_says_about_the_training() -> None:
    delays = Delays()
    assert delays.residual_weight == 1.0
    told = []
    for _ in range(100):
        delays.note_step(1.0, 10.0 if delays.wants_residual else None)
        told.append(delays.residual_weight)

    assert set(told[:10]) == {1.0}
    assert told == sorted(told, reverse=True)
    assert told[34] == pytest.approx(0.5)
    assert set(told[60:]) == {0.0}


@given(values=st.lists(st.integers(0, 3000), max_size=50))
def test_a_distribution_counts_every_value(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)

    distribution = histogram.distribution()
    assert (distribution.count, distribution.sum) == (len(values), sum(values))
    assert distribution.at_most == tuple(sum(v <= limit for v in values) for limit in BUCKETS)
    assert distribution.mean == (np.mean(values) if values else 0.0)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), span=st.floats(1.5, 500))
def test_a_recent_mean_is_within_the_values(values: list[float], span: float) -> None:
    mean = RecentMean(span)
    assert mean.value == 0.0
    for value in values:
        mean.add(value)

    slack = 1e-6 * max(map(abs, values)) + 1e-12
    assert min(values) - slack <= mean.value <= max(values) + slack


@given(value=st.floats(0, 1e6), first=st.floats(0, 1e6), count=st.integers(1, 50))
def test_a_value_that_counts_more_came_more_often(value: float, first: float, count: int) -> None:
    one, other = RecentMean(16), RecentMean(16)
    one.add(first)
    other.add(first)

    one.add(value, count)
    for _ in range(count):
        other.add(value)

    assert one.value == pytest.approx(other.value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("late", [0, 1, 5])
def test_lateness_is_that_of_a_simulated_lockstep(late: int) -> None:
    delays = of_lockstep(4, late=late)

    assert delays.lateness({1, 2, 3}, 4) == pytest.approx(late, abs=0.3)
    assert delays.lateness({1}, 4) == pytest.approx(late, abs=0.6)


def test_lateness_can_be_judged_by_later_updates_alone() -> None:
    delays = Delays()
    for _ in range(100):
        delays.note_update(1, 50)
    assert delays.lateness({1}, 2) == pytest.approx(24.5)

    delays.forget_lateness()

    assert delays.lateness({1}, 2) is None
    for _ in range(100):
        delays.note_update(1, 1)
    assert delays.lateness({1}, 2) == 0.0
