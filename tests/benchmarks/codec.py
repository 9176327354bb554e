"""The codec's speed on 14.6 million parameters, the model size that Strom reports.

The threshold pass stands beside adding two vectors of the same size in place, which reads and
writes about as much memory. Encoding a whole update and applying one stand beside plain compiled
loops over the same elements in the same order.
"""

import numpy as np

from benchmarks.figures import Figure, alternately, at_least, at_most
from gradwire_codecs import LocalFeedback, Replica, Sections, decode, multiple_of
from gradwire_codecs.arrays import Float32Array, Int32Array, UInt32Array
from gradwire_codecs.compiled import compiled
from gradwire_codecs.threshold_pass import ThresholdPass

N = 14_600_000
DENSITIES = {0.0001: 1.25, 0.001: 1.3, 0.01: 1.6, 0.05: 3.0}
"""Part of the elements that are hits, and the aim for the pass."""


@compiled
def plain_apply(
    values: Int32Array, parameters: Float32Array, index: UInt32Array, change: Int32Array
) -> None:
    """Do what applying has to do, with everything decoded before."""
    for j in range(index.size):
        i = index[j]
        values[i] += change[j]
        parameters[i] += np.float32(change[j]) * np.float32(2.0**-24)


def run() -> list[Figure]:
    """Measure."""
    random = np.random.default_rng(0)
    residual = (random.standard_normal(N) * 0.01).astype(np.float32)
    figures = []
    for density, aim in DENSITIES.items():
        threshold = float(np.quantile(np.abs(residual[:1_000_000]), 1 - density))
        figures += _measure(residual, density, threshold, aim)
    return figures


def _measure(residual: Float32Array, density: float, threshold: float, aim: float) -> list[Figure]:
    # Memory that was never written to is one page of zeros for the kernel, and costs no reading.
    replica = Replica(np.full(N, 0, np.int32))
    multiple = multiple_of(threshold, float(replica.quantum))
    nothing = np.empty(0, np.float32)
    total = np.zeros(N, np.float32)
    sections = Sections.single(0, N, multiple)
    one, two = (
        ThresholdPass(residual, nothing, replica.values, replica.quantum, threads)
        for threads in (1, 2)
    )
    pass_seconds, two_seconds, add_seconds = alternately(
        lambda: one.look(sections, 1),
        lambda: two.look(sections, 1),
        lambda: np.add(total, residual, out=total),
    )
    two.close()

    body = b"".join(LocalFeedback(residual, Replica.zeros(N)).encode(multiple, magnitude_max=1))
    update = decode(body, N)
    change = update.count * np.int32(multiple)
    mine = LocalFeedback(np.zeros(N, np.float32), Replica.zeros(N))
    values, parameters = np.zeros(N, np.int32), np.zeros(N, np.float32)
    apply_seconds, loop_seconds = alternately(
        lambda: mine.apply(body),
        lambda: plain_apply(values, parameters, update.index, change),
    )
    hits = len(update.index)
    return [
        at_most(f"threshold pass, {density:.2%} hits", 1e3 * pass_seconds, "ms",
                "np.add(r, g, out=r)", 1e3 * add_seconds, aim=aim, runs=9),
        at_least(f"two threads, {density:.2%} hits", 1 / two_seconds, "passes/s",
                 "one thread", 1 / pass_seconds, aim=1.7, runs=9),
        at_most(f"decode and apply, {density:.2%} hits", 1e9 * apply_seconds / hits, "ns/element",
                "plain loop, decoded before", 1e9 * loop_seconds / hits, aim=1.5, runs=9),
    ]  # fmt: skip
