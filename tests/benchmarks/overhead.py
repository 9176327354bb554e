"""What `session.step()` costs the training thread, beside the step without it.

A real session with a real master on loopback; the parameters change in every step, at the usual
density, which the threshold has come to before it is measured. The step without gradwire is stood
for by a compiled loop that computes for 100 or 10 milliseconds and lets go of the GIL, as torch's
operations do; it is measured in the same steps, so what else the machine does meanwhile counts for
both. In the cases with a peer there is one more worker, a process of its own that does the same on
the other core, and every step applies what came from it.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.figures import Figure, at_most, beside
from benchmarks.masters import Master, form
from benchmarks.programs import Program, announce, end_with_parent
from gradwire import Session, join
from gradwire_codecs.kernels.compiled import compiled


class Case(NamedTuple):
    """A model and the pace it is trained at."""

    parameters: int
    seconds: float
    """What a step takes without gradwire."""
    aim: float | None
    peers: int = 0


CASES: Final = (
    Case(1_000_000, 0.100, 1.05),
    Case(1_000_000, 0.010, 1.20),
    Case(14_600_000, 0.100, 1.05),
    Case(1_000_000, 0.010, None, peers=1),
    Case(14_600_000, 0.100, None, peers=1),
)
"""Those with a peer have no aim: what it takes grows with the number of peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    cases: Sequence[Case] = CASES
    steps: int = 40
    settling_steps: int = 300
    """Steps without computing, in which the threshold finds its place: more than updates are denser
    for."""
    rounds_timed: int = 10_000_000
    """Of `compute`, to learn how fast it is."""
    keys: bool = True
    """Whether the master and its workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(
    cases=(Case(10_000, 0.001, None, peers=1),), steps=2, settling_steps=3, rounds_timed=100_000
)

CHANGE: Final = 1e-4


@compiled
def compute(rounds: int) -> float:
    """Keep the processor busy."""
    x = 0.5
    for _ in range(rounds):
        x = x * 1.0000001 + 1e-9
    return x


class Training:
    """Parameters that change like those that an optimizer trains, and a session for them."""

    def __init__(self, parameters: int, settling_steps: int, seed: int, **settings: Any) -> None:
        random = np.random.default_rng(seed)
        self.vector = np.random.default_rng(0).normal(0, 0.1, parameters).astype(np.float32)
        # Read from another place each time, it changes every element by another amount.
        self._noise = random.standard_normal(2 * parameters, np.float32) * np.float32(CHANGE)
        self._random = random
        self._settling_steps = settling_steps
        self.session: Session = join(self.vector, **settings)

    def change(self) -> None:
        """Do the optimizer's work."""
        start = int(self._random.integers(len(self.vector)))
        self.vector += self._noise[start : start + len(self.vector)]

    def settle(self) -> None:
        """Share until the threshold has found its place."""
        for _ in range(self._settling_steps):
            self.change()
            self.session.step()


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    compute(1)
    began = thread_time()
    compute(plan.rounds_timed)
    rounds_per_second = plan.rounds_timed / (thread_time() - began)
    return [_measure(case, int(rounds_per_second * case.seconds), plan) for case in plan.cases]


def _measure(case: Case, rounds: int, plan: Plan) -> Figure:
    plain: list[float] = []
    shared: list[float] = []
    with ExitStack() as stack:
        master = stack.enter_context(Master(keys=plan.keys))
        environ = master.environ()
        workers = 1 + case.peers
        for _ in range(case.peers):
            arguments = map(str, (case.parameters, rounds, plan.settling_steps, workers))
            stack.enter_context(Program("benchmarks.overhead", *arguments, environ=environ))
        # All begin together: one that is far ahead of another goes in lockstep with it.
        training = Training(case.parameters, plan.settling_steps, seed=1, master=master.address,
                            key_file=environ.get("GRADWIRE_KEY_FILE"), workers=workers)  # fmt: skip
        stack.callback(training.session.close)
        training.settle()
        for _ in range(plan.steps):
            began = perf_counter()
            compute(rounds)
            computed = perf_counter()
            training.change()  # the optimizer's work, in neither figure
            changed = perf_counter()
            training.session.step()
            stepped = perf_counter()
            plain.append(computed - began)
            shared.append(computed - began + stepped - changed)
    return _figure(case, shared, plain, plan)


def _figure(case: Case, shared: Sequence[float], plain: Sequence[float], plan: Plan) -> Figure:
    name = f"step of {case.parameters / 1e6:g} M parameters, {1e3 * case.seconds:g} ms"
    if case.peers:
        name += ", and a peer's updates"
    name += f", {form(keys=plan.keys)}"
    value, rival, without = 1e3 * median(shared), 1e3 * median(plain), "the same without gradwire"
    if case.aim is None:
        return beside(name, value, "ms", without, rival, runs=len(plain))
    return at_most(name, value, "ms", without, rival, aim=case.aim, runs=len(plain))


def main() -> None:
    """Be a peer, until the parent ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parameters", type=int)
    parser.add_argument("rounds", type=int)
    parser.add_argument("settling_steps", type=int)
    parser.add_argument("workers", type=int)
    options = parser.parse_args()
    end_with_parent()
    announce(ready=True)
    training = Training(options.parameters, options.settling_steps, seed=2, workers=options.workers)
    training.settle()
    while True:
        compute(options.rounds)
        training.change()
        training.session.step()


if __name__ == "__main__":
    main()
