"""The codec's output beside the entropy of the positions, and beside other formats.

Positions are uniform; one sign bit per element cannot be saved. The word format is one signed
32-bit index per element, as Deeplearning4j sent it.
"""

import numpy as np

from benchmarks.figures import Figure, at_least, at_most
from gradwire_codecs import Sections, Update
from gradwire_codecs.update import pack_update

N = 14_600_000
DENSITIES = (0.0003, 0.001, 0.01, 0.05)


def run() -> list[Figure]:
    """Measure."""
    random = np.random.default_rng(0)
    figures = []
    for density in DENSITIES:
        index = np.flatnonzero(random.random(N) < density).astype(np.uint32)
        count = random.choice(np.array([-1, 1], np.int32), index.size)
        encoded = pack_update(Update(Sections.single(0, N, 1000), index, count))
        bits = 8 * len(encoded) / index.size
        p = index.size / N
        entropy = -np.log2(p) - (1 - p) / p * np.log2(1 - p) + 1
        figures += [
            at_most(f"size, {density:.2%} of 14.6 M", bits, "bits/element",
                    "entropy of the positions + sign", entropy, aim=1.02, runs=1),
            at_least(f"smaller than words, {density:.2%}", 4 * (index.size + 4), "bytes",
                     "ours", len(encoded), aim=2.2, runs=1),
        ]  # fmt: skip
    return figures
