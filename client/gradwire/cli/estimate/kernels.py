"""Costs of the codec on this machine, measured with its own kernels in half a second."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, thread_time
from timeit import repeat
from typing import Final

import numpy as np

from gradwire_codecs import BlockDigests, LocalFeedback, Replica, decode
from gradwire_codecs.arrays import Float32Array

PARAMETERS_MAX: Final = 2**23
"""Vectors of 32 MB each, larger than most caches; the time of larger ones is in proportion."""

HITS_MIN: Final = 1_000
"""The time of fewer would be lost in that of a call."""

RUNS: Final = 5
"""The quickest run counts, so that other load on this machine does not."""

MULTIPLE: Final = 2**12
"""The threshold in quanta."""
HIT_THRESHOLDS: Final = 1_000
"""Value of a hit in thresholds, at first: larger than what all runs together take from it."""


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Seconds of the codec's kernels; see `Costs`."""

    pass_seconds_per_parameter: float
    encode_seconds_per_hit: float
    apply_seconds_per_hit: float
    master_seconds_per_hit: float


def measure_kernels(parameters: int, density: float, *, codec_threads: int = 1) -> KernelCosts:
    """Measure pass, encoding and applying on a vector like that of the training.

    It has at most `PARAMETERS_MAX` elements, also for larger models.
    """
    n = max(min(parameters, PARAMETERS_MAX), 4 * HITS_MIN)
    density = min(max(density, HITS_MIN / n), 0.5)
    generator = np.random.default_rng(0)
    # All below the threshold, and all different, as in a real residual.
    threshold = np.float32(MULTIPLE * Replica.zeros(1).quantum)
    residual = (generator.random(n, np.float32) - np.float32(0.5)) * threshold
    chosen = np.flatnonzero(generator.random(n, np.float32) < density)
    quiet = _feedback(residual, codec_threads)
    # The work of one thread is timed in seconds of a core, that of several by the clock.
    clock = thread_time if codec_threads == 1 else perf_counter
    pass_seconds = _quickest(lambda: quiet.encode(MULTIPLE), clock)
    quiet.close()
    residual[chosen] = HIT_THRESHOLDS * np.copysign(threshold, residual[chosen])
    mine = _feedback(residual, codec_threads)
    bodies = mine.encode(MULTIPLE, magnitude_max=1)
    encode_seconds = _quickest(lambda: mine.encode(MULTIPLE, magnitude_max=1), clock)
    mine.close()
    theirs = _feedback(np.full(n, 0, np.float32), 1)
    apply_seconds = _quickest(lambda: [theirs.apply(body) for body in bodies])
    replica = Replica(np.full(n, 0, np.int32))
    digests = BlockDigests.of(replica.values, n)

    def apply_at_master() -> None:
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
        master_seconds_per_hit=_quickest(apply_at_master) / hits,
    )


def scan_seconds(parameters: int) -> float:
    """Return how long the search for what to send takes where there is nothing to send."""
    scanned = _feedback(np.full(parameters, 0, np.float32), 1)
    return _quickest(lambda: scanned.encode(MULTIPLE))


def _feedback(parameters: Float32Array, threads: int) -> LocalFeedback:
    # Filled, because all pages of memory that was never written to are one page of zeros: reading
    # them would take no time.
    replica = Replica(np.full(parameters.size, 0, np.int32))
    return LocalFeedback(parameters, replica, threads=threads)


def _quickest(work: Callable[[], object], clock: Callable[[], float] = thread_time) -> float:
    work()
    return min(repeat(work, timer=clock, repeat=RUNS, number=1))
