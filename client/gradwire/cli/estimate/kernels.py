"""What the codec takes on this machine, measured with its own kernels in half a second."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Final

import numpy as np

from gradwire_codecs import BlockDigests, LocalFeedback, Replica, decode
from gradwire_codecs.arrays import Float32Array

PARAMETERS_MAX: Final = 2**23
"""Vectors of 32 MB each, more than most caches hold: what larger ones take is in proportion."""

HITS_MIN: Final = 1_000
"""Fewer would be lost in what a call takes."""

RUNS: Final = 5
"""Of which the quickest counts: what else this machine does is no part of the figure."""

MULTIPLE: Final = 2**12
"""The threshold in quanta."""
LASTING: Final = 1_000
"""Thresholds that a hit is worth at first: more than are taken from it in all runs."""


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Seconds of the codec's kernels; see `Costs`."""

    pass_seconds_per_parameter: float
    encode_seconds_per_hit: float
    apply_seconds_per_hit: float
    master_seconds_per_hit: float


def measure_kernels(parameters: int, density: float, *, codec_threads: int = 1) -> KernelCosts:
    """Measure pass, encoding and applying on vectors like those of the training.

    Parameters
    ----------
    parameters : int
        Of the model; larger ones than `PARAMETERS_MAX` are measured by a part of them.
    density : float
    codec_threads : int
    """
    n = max(min(parameters, PARAMETERS_MAX), 4 * HITS_MIN)
    density = min(max(density, HITS_MIN / n), 0.5)
    generator = np.random.default_rng(0)
    # Below the threshold, and different from each other as parameters are.
    threshold = np.float32(MULTIPLE * Replica.zeros(1).quantum)
    residual = (generator.random(n, np.float32) - np.float32(0.5)) * threshold
    chosen = np.flatnonzero(generator.random(n, np.float32) < density)
    quiet = _feedback(residual, codec_threads)
    # What one thread does is timed by what that takes of a core, what several do by the clock.
    clock = thread_time if codec_threads == 1 else perf_counter
    pass_seconds = _quickest(lambda: quiet.encode(MULTIPLE), clock)
    quiet.close()
    residual[chosen] = LASTING * np.copysign(threshold, residual[chosen])
    mine = _feedback(residual, codec_threads)
    bodies = mine.encode(MULTIPLE, magnitude_max=1)
    encode_seconds = _quickest(lambda: mine.encode(MULTIPLE, magnitude_max=1), clock)
    mine.close()
    theirs = _feedback(np.full(n, 0, np.float32), 1)
    apply_seconds = _quickest(lambda: [theirs.apply(body) for body in bodies])
    replica = Replica(np.full(n, 0, np.int32))
    digests = BlockDigests.of(replica.values, n)

    def take_in() -> None:
        for body in bodies:
            update = decode(body, n)
            replica.first_outside(update)
            replica.apply(update)
            digests.add(update)

    hits = chosen.size
    return KernelCosts(
        pass_seconds_per_parameter=pass_seconds / n,
        encode_seconds_per_hit=max(encode_seconds - pass_seconds, 0.0) / hits,
        apply_seconds_per_hit=apply_seconds / hits,
        master_seconds_per_hit=_quickest(take_in) / hits,
    )


def scan_seconds(parameters: int) -> float:
    """Return what looking for what to send takes where nothing is."""
    scanned = _feedback(np.full(parameters, 0, np.float32), 1)
    return _quickest(lambda: scanned.encode(MULTIPLE))


def _feedback(parameters: Float32Array, threads: int) -> LocalFeedback:
    # Memory that was never written to is one page of zeros for the kernel, and costs no reading.
    replica = Replica(np.full(parameters.size, 0, np.int32))
    return LocalFeedback(parameters, replica, threads=threads)


def _quickest(work: Callable[[], object], clock: Callable[[], float] = thread_time) -> float:
    work()
    times = []
    for _ in range(RUNS):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)
