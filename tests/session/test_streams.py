"""DiLoCo in streams: fragments of the parameters in turn, while training goes on."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from gradwire import DiLoCo
from gradwire.participant.contributing import Contributing
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.replica.fragments import fragments_of
from gradwire_codecs.replica.round_sum import ranges_of
from support.local_master import LocalMaster
from support.sessions import at_once, join, participant_of
from support.waiting import wait_until

STREAMS: Final = 2
EVERY: Final = 6
BETWEEN: Final = EVERY // STREAMS
RATE, MOMENTUM = 0.7, 0.9
MODE = DiLoCo(every=EVERY, outer_lr=RATE, outer_momentum=MOMENTUM, streams=STREAMS, waits=True)
WORKERS = 2
CYCLES = 4
SIZE = 40


def change_of(rank: int, step: int) -> Float32Array:
    """Return what a step of a worker changes, wherever its parameters are."""
    return np.random.default_rng([rank, step]).normal(1e-3, 1e-3, SIZE).astype(np.float32)


class Trainer:
    """A worker, one step after the other."""

    def __init__(self, master: LocalMaster, mode: Any = MODE, **options: Any) -> None:
        self.target = zeros_of(SIZE)
        self.session = join(master, self.target, mode=mode, **options)
        self.steps = 0

    def step(self) -> None:
        self.target += change_of(self.session.rank, self.steps)
        self.steps += 1
        self.session.step()

    @property
    def trained(self) -> Any:
        """What all its steps have changed."""
        return np.sum([change_of(self.session.rank, step) for step in range(self.steps)], 0)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @property
    def contributing(self) -> Contributing:
        found = participant_of(self.session).contributing
        assert found is not None
        return found


def zeros_of(size: int) -> Float32Array:
    return np.zeros(size, np.float32)


def two(master: LocalMaster) -> list[Trainer]:
    trainers = [Trainer(master) for _ in range(WORKERS)]
    wait_until(lambda: len(trainers[0].session.workers) == WORKERS, "both to take part")
    return trainers


def reference(steps: int) -> tuple[Any, float]:
    """Return the parameters at the end, in float64, and the largest change that was contributed.

    Each fragment is a DiLoCo of its own, whose rounds are `BETWEEN` steps after those of the one
    before.
    """
    fragments = fragments_of(ranges_of([SIZE]), STREAMS)
    outer, velocity = np.zeros(SIZE), np.zeros(SIZE)
    trained = np.zeros((WORKERS, SIZE))
    largest = 0.0
    for step in range(steps):
        for rank in range(WORKERS):
            trained[rank] += change_of(rank, step)
        turn, left = divmod(step + 1, BETWEEN)
        if left:
            continue
        for start, stop in fragments[(turn - 1) % STREAMS]:
            part = slice(start, stop)
            largest = max(largest, np.abs(trained[:, part]).max())
            velocity[part] = MOMENTUM * velocity[part] + trained[:, part].mean(0)
            outer[part] += RATE * velocity[part]
            trained[:, part] = 0
    return outer + RATE * MOMENTUM * velocity + RATE * trained.mean(0), largest


def test_each_fragment_is_trained_by_the_algorithm_of_the_paper(master: LocalMaster) -> None:
    steps = CYCLES * EVERY + 1
    trainers = two(master)
    at_once(*(lambda each=each: each.play(steps) for each in trainers))
    at_once(*(each.session.finish for each in trainers))

    expected, largest = reference(steps)

    first, second = (each.target for each in trainers)
    assert first.tobytes() == second.tobytes()
    unit = largest / 127
    assert np.abs(first - expected).max() <= unit * (1 + MOMENTUM) / (1 - MOMENTUM)
    assert np.abs(first).min() > 10 * unit


def test_training_goes_on_until_the_next_contribution(master: LocalMaster) -> None:
    one, other = two(master)
    one.play(2 * BETWEEN - 1)  # nobody else has contributed
    np.testing.assert_allclose(one.target, one.trained, atol=np.abs(one.trained).max() / 127)
    is_on = threading.Event()

    def go_on() -> None:
        one.step()
        is_on.set()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(go_on)
        other.play(BETWEEN - 1)
        assert not is_on.is_set()
        other.step()
        waiting.result()
    assert one.contributing._rounds == 1
    at_once(lambda: one.session.leave(), lambda: other.session.leave())


def test_what_is_in_flight_is_in_no_saved_state(master: LocalMaster) -> None:
    one, other = two(master)
    one.play(BETWEEN)
    state = one.session.state_dict()
    residual = np.asarray(state["residual"])
    [fragment] = fragments_of(ranges_of([SIZE]), STREAMS)[0]
    unit = np.abs(one.trained).max() / 127
    assert np.abs(residual[slice(*fragment)]).max() <= unit
    kept = slice(fragment[1], SIZE)
    np.testing.assert_allclose(residual[kept], one.trained[kept], atol=1e-6)
    np.testing.assert_allclose(one.target, one.trained, atol=unit)
    one.session.leave()
    other.session.leave()


def test_a_worker_that_joins_knows_whose_turn_it_is(master: LocalMaster) -> None:
    first = Trainer(master)
    first.play(3 * BETWEEN)
    wait_until(lambda: (first.session.pull(), first.contributing._rounds == 3)[1], "the last round")
    second = Trainer(master, mode=None)
    assert second.contributing._rounds == 3
    at_once(lambda: first.play(2 * BETWEEN), lambda: second.play(2 * BETWEEN))
    at_once(first.session.finish, second.session.finish)
    assert first.target.tobytes() == second.target.tobytes()
