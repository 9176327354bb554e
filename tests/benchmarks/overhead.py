"""What `session.step()` costs the training thread, beside the step without it.

A real session with a real master on loopback; the model changes as an optimizer would change it,
at the usual density. The step without gradwire is stood for by a compiled loop that computes for
100 or 10 milliseconds and lets go of the GIL, as torch's operations do.
"""

from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.figures import Figure, at_most
from gradwire import join
from gradwire_codecs.compiled import compiled
from support.local_master import MasterProcess

CASES = ((1_000_000, 0.100, 1.05), (1_000_000, 0.010, 1.20), (14_600_000, 0.100, 1.05))
"""Parameters, seconds of a step, and the aim."""

STEPS = 40
WARM_UP_STEPS = 15


@compiled
def compute(rounds: int) -> float:
    """Keep the processor busy."""
    x = 0.5
    for _ in range(rounds):
        x = x * 1.0000001 + 1e-9
    return x


def run() -> list[Figure]:
    """Measure."""
    compute(1)
    began = perf_counter()
    compute(10_000_000)
    rounds_per_second = 10_000_000 / (perf_counter() - began)
    return [_measure(n, int(rounds_per_second * s), aim) for n, s, aim in CASES]


def _measure(parameters: int, rounds: int, aim: float) -> Figure:
    random = np.random.default_rng(0)
    vector = random.normal(0, 0.1, parameters).astype(np.float32)
    changes = [random.normal(0, 1e-4, parameters).astype(np.float32) for _ in range(4)]
    plain: list[float] = []
    shared: list[float] = []
    with MasterProcess() as master:
        session = join(vector, master=master.address)
        for i in range(STEPS):
            began = perf_counter()
            compute(rounds)
            computed = perf_counter()
            vector += changes[i % len(changes)]  # the optimizer's work, in neither figure
            changed = perf_counter()
            session.step()
            stepped = perf_counter()
            if i >= WARM_UP_STEPS:
                plain.append(computed - began)
                shared.append(computed - began + stepped - changed)
        session.close()
    value, rival = 1e3 * median(shared), 1e3 * median(plain)
    name, without = f"step of {parameters / 1e6:g} M parameters", "the same without gradwire"
    return at_most(name, value, "ms", without, rival, aim=aim, runs=len(plain))
