"""How far workers' steps agree, measured from what the others send."""

from collections.abc import Callable

import numpy as np
import pytest

from gradwire.optimizer.scale import ELEMENTS, Agreement
from gradwire_codecs import LocalFeedback, Replica
from gradwire_codecs.arrays import Float32Array

SIZE = 2 * ELEMENTS
"""Every second element is in the sample."""

EXPONENT = -24
QUANTUM = 2.0**EXPONENT
DENSITY = 0.02
STEP = 1e-3

Steps = Callable[[np.random.Generator], Float32Array]
"""Returns a worker's next step."""


class Worker:
    """Trains, and applies what the others send."""

    def __init__(self) -> None:
        self.parameters = np.zeros(SIZE, np.float32)
        self.feedback = LocalFeedback(self.parameters, Replica.zeros(SIZE, EXPONENT))
        self.agreement = Agreement(self.feedback)
        self.threshold: int | None = None
        self.received = 0

    def step(self, change: Float32Array, others: int) -> list[bytes]:
        """Make a step; return the updates of it."""
        self.parameters += change
        self.agreement.note_change(self.received, others)
        self.threshold = self.threshold or int(20 * STEP / QUANTUM)
        bodies = self.feedback.encode(self.threshold)
        self.threshold = int(self.threshold * (1.05 if self.density > DENSITY else 0.95))
        self.agreement.note_rest(self.received)
        return bodies

    @property
    def density(self) -> float:
        """Part of the elements that the last update has changed."""
        assert self.threshold is not None
        return self.feedback.quanta_sent / self.threshold / SIZE

    def apply(self, bodies: list[bytes], updates: int = 1) -> None:
        """Apply what another worker has sent."""
        for body in bodies:
            self.feedback.apply(body)
        self.received += updates


def trained(workers: int, steps: int, step_of: Steps, updates: int = 1) -> list[Worker]:
    """Return workers that have made steps in turn, each of so many updates."""
    members = [Worker() for _ in range(workers)]
    random = np.random.default_rng(3)
    for _ in range(steps):
        sent = [each.step(step_of(random), workers - 1) for each in members]
        for origin, bodies in zip(members, sent, strict=True):
            for each in members:
                if each is not origin:
                    each.apply(bodies, updates)
    return members


def agreeing(agreement: float) -> Steps:
    """Return steps of which two workers' have this cosine."""
    signal = np.random.default_rng(5).standard_normal(SIZE)

    def step(random: np.random.Generator) -> Float32Array:
        noise = random.standard_normal(SIZE)
        whole = agreement**0.5 * signal + (1 - agreement) ** 0.5 * noise
        change: Float32Array = (STEP * whole).astype(np.float32)
        return change

    return step


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("agreement", [0.0, 0.03, 0.3, 1.0])
def test_it_is_the_cosine_between_steps_of_two_workers(workers: int, agreement: float) -> None:
    for each in trained(workers, 200, agreeing(agreement)):
        assert each.agreement.value == pytest.approx(agreement, abs=0.03, rel=0.2)


def test_more_updates_than_workers_do_not_count_as_more_agreement() -> None:
    """Of a worker that is twice as quick, two come in a step."""
    [first, _] = trained(2, 200, agreeing(0.4), updates=2)

    assert first.agreement.value == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_step_that_is_no_step_says_nothing(value: float) -> None:
    [worker, _] = trained(2, 100, agreeing(0.5))
    before = worker.agreement.value

    worker.parameters += np.float32(value)
    with np.errstate(invalid="ignore"):
        worker.agreement.note_change(worker.received, 1)

    assert worker.agreement.value == pytest.approx(before, rel=1e-3)
