"""Steps of the outer optimizer: those of torch's SGD with Nesterov's momentum."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update
from gradwire_codecs.replica.fragments import fragments_of
from gradwire_codecs.replica.outer_step import OuterSum, look_ahead

ELEMENTS = 50
RANGES = [(0, 20), (20, ELEMENTS)]
WORKERS = 3
ROUNDS = 12
QUANTA = 10_000


def update_of(change: np.ndarray) -> Update:
    index = np.flatnonzero(change).astype(np.uint32)
    return Update(0, ELEMENTS, 1, index, change[index].astype(np.int32))


def sum_of(updates: Sequence[Update]) -> np.ndarray:
    total = np.zeros(ELEMENTS, np.int64)
    for update in updates:
        total[update.index] += update.change
    return total


@pytest.mark.parametrize("magnitude_max", [None, 127, 7])
@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.9), (1.0, 0.0), (0.3, 0.5)])
def test_the_replica_and_its_look_ahead_are_what_torch_computes(
    rate: float, momentum: float, magnitude_max: int | None
) -> None:
    random = np.random.default_rng(1)
    outer = OuterSum(ELEMENTS, RANGES, rate=rate, momentum=momentum)
    expected = torch.zeros(ELEMENTS, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([expected], lr=rate, momentum=momentum, nesterov=momentum > 0)
    replica, coarsest = np.zeros(ELEMENTS, np.int64), 1
    for done in range(1, ROUNDS + 1):
        changes = random.integers(-QUANTA, QUANTA, (WORKERS, ELEMENTS))
        for change in changes:
            outer.add(update_of(change))
        expected.grad = torch.tensor(-changes.mean(0))
        sgd.step()
        is_last = done == ROUNDS

        step = outer.take_mean(WORKERS, magnitude_max)
        replica += sum_of(step)
        coarsest = max([coarsest, *(update.multiple for update in step)])
        ahead = np.zeros(ELEMENTS, np.int32)
        look_ahead(step, momentum, ahead)
        parameters = replica + ahead
        if is_last:
            replica += sum_of(outer.take_mean(WORKERS, magnitude_max, is_last=True))
            parameters = replica

        # What one round leaves is made up for by the next ones; momentum repeats it.
        error = np.abs(parameters - expected.detach().numpy()).max()
        assert error <= coarsest * (1 + momentum) / (1 - momentum) + done


def test_another_master_goes_on_with_the_last_step() -> None:
    random = np.random.default_rng(2)
    one = OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9)
    one.add(update_of(random.integers(-QUANTA, QUANTA, ELEMENTS)))
    step = one.take_mean(1, None)
    other = OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9)
    other.remember([step])
    change = update_of(random.integers(-QUANTA, QUANTA, ELEMENTS))
    for each in (one, other):
        each.add(change)

    difference = sum_of(one.take_mean(1, None)) - sum_of(other.take_mean(1, None))

    assert np.abs(difference).max() <= 1  # what rounding has left is not known to the other one


# Fragments that take turns.


STREAMS = 3
FRAGMENTS = fragments_of(RANGES, STREAMS)


def of_fragment(change: np.ndarray, turn: int) -> Update:
    """Return what a worker contributes of a change when it is a fragment's turn."""
    ranges = FRAGMENTS[turn % STREAMS]
    start, stop = ranges[0][0], ranges[-1][1]
    index = start + np.flatnonzero(change[start:stop]).astype(np.uint32)
    return Update(start, stop, 1, index, change[index].astype(np.int32))


@pytest.mark.parametrize("magnitude_max", [None, 127])
def test_each_fragment_is_a_sequence_of_its_own(magnitude_max: int | None) -> None:
    random = np.random.default_rng(3)
    outer = OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9, streams=STREAMS)
    alone = [OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9) for _ in range(STREAMS)]
    for turn in range(4 * STREAMS):
        mine = alone[turn % STREAMS]
        for _ in range(WORKERS):
            update = of_fragment(random.integers(-QUANTA, QUANTA, ELEMENTS), turn)
            outer.add(update)
            mine.add(update)

        *step, rounds = outer.take_mean(WORKERS, magnitude_max)

        assert (rounds.start, rounds.change.tolist()) == (ELEMENTS, [1])
        covered = {i for update in step for i in range(update.start, update.stop)}
        assert covered == {i for a, b in FRAGMENTS[turn % STREAMS] for i in range(a, b)}
        if magnitude_max is None:  # else thresholds are those of a range of another length
            assert sum_of(step).tolist() == sum_of(mine.take_mean(WORKERS, None)).tolist()


def test_a_late_contribution_is_in_the_round_of_another_fragment() -> None:
    outer = OuterSum(ELEMENTS, RANGES, rate=1.0, momentum=0.0, streams=STREAMS)
    late, change = np.arange(ELEMENTS), np.full(ELEMENTS, 1000)
    outer.take_mean(1, None)
    outer.add(of_fragment(change, 1))
    outer.add(of_fragment(late, 0))

    *step, _ = outer.take_mean(1, None)

    expected = sum_of([of_fragment(change, 1), of_fragment(late, 0)])
    assert sum_of(step).tolist() == expected.tolist()


@pytest.mark.parametrize("magnitude_max", [None, 127])
def test_a_late_contribution_counts_as_if_its_round_had_had_it(magnitude_max: int | None) -> None:
    random = np.random.default_rng(5)
    turns, momentum = 4 * STREAMS, 0.9
    late, in_time = (
        OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=momentum, streams=STREAMS) for _ in range(2)
    )
    replicas = {outer: np.zeros(ELEMENTS, np.int64) for outer in (late, in_time)}
    aheads = {outer: np.zeros(ELEMENTS, np.int32) for outer in (late, in_time)}
    coarsest, held_back = 1, list[Update]()
    for turn in range(turns):
        change, other = (
            of_fragment(random.integers(-QUANTA, QUANTA, ELEMENTS), turn) for _ in range(2)
        )
        is_late = turn % 2 == 0
        for update in (change, other):
            in_time.add(update)
        for update in (*held_back, change, *([] if is_late else [other])):
            late.add(update)
        held_back = [other] if is_late else []
        for outer in (late, in_time):
            *step, _ = outer.take_mean(2, magnitude_max)
            replicas[outer] += sum_of(step)
            ranges = FRAGMENTS[turn % STREAMS]
            aheads[outer][ranges[0][0] : ranges[-1][1]] = 0
            look_ahead(step, momentum, aheads[outer])
            coarsest = max([coarsest, *(update.multiple for update in step)])

    expected = replicas[in_time] + aheads[in_time]
    error = np.abs(replicas[late] + aheads[late] - expected).max()
    most = 2 * (coarsest * (1 + momentum) / (1 - momentum) + turns)
    assert error <= most
    for outer in (late, in_time):
        *rest, _ = outer.take_mean(2, magnitude_max, is_last=True)
        assert np.abs(sum_of(rest) - aheads[outer]).max() <= coarsest


def test_another_master_goes_on_with_the_last_step_of_each_fragment() -> None:
    random = np.random.default_rng(4)
    one = OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9, streams=STREAMS)
    results = []
    for turn in range(STREAMS + 2):
        one.add(of_fragment(random.integers(-QUANTA, QUANTA, ELEMENTS), turn))
        if turn:  # late
            one.add(of_fragment(random.integers(-QUANTA, QUANTA, ELEMENTS), turn - 1))
        results.append(one.take_mean(1, None))
    other = OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9, streams=STREAMS)
    other.remember(results[-STREAMS:], STREAMS + 2)

    assert other.last_step.tolist() == one.last_step.tolist()
    for turn in range(STREAMS + 2, 2 * STREAMS + 2):
        update = of_fragment(random.integers(-QUANTA, QUANTA, ELEMENTS), turn)
        for each in (one, other):
            each.add(update)
        *mine, rounds = one.take_mean(1, None)
        *its, its_rounds = other.take_mean(1, None)
        assert rounds.change.tolist() == its_rounds.change.tolist()
        assert np.abs(sum_of(mine) - sum_of(its)).max() <= 1


def test_the_rest_of_all_fragments_is_in_the_last_result() -> None:
    outer = OuterSum(ELEMENTS, RANGES, rate=0.5, momentum=0.5, streams=STREAMS)
    replica, ahead = np.zeros(ELEMENTS, np.int64), np.zeros(ELEMENTS, np.int32)
    for turn in range(STREAMS):
        outer.add(of_fragment(np.arange(ELEMENTS) * 64, turn))
        *step, _ = outer.take_mean(1, None)
        replica += sum_of(step)
        look_ahead(step, 0.5, ahead)

    *rest, _ = outer.take_mean(1, None, is_last=True)

    assert sum_of(rest).tolist() == ahead.tolist()
    assert not outer.last_step.any()


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    streams=st.integers(1, 40),
)
def test_fragments_are_all_ranges_and_of_one_size(sizes: list[int], streams: int) -> None:
    stops = np.cumsum(sizes).tolist()
    ranges = list(zip([0, *stops], stops, strict=False))

    fragments = fragments_of(ranges, streams)

    assert len(fragments) == streams
    parts = [part for fragment in fragments for part in fragment]
    assert [i for start, stop in parts for i in range(start, stop)] == list(range(stops[-1]))
    assert all(any(a <= start and stop <= b for a, b in ranges) for start, stop in parts)
    lengths = [sum(stop - start for start, stop in fragment) for fragment in fragments]
    assert max(lengths) - min(lengths) <= 1
