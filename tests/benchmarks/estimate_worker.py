"""A worker whose steps take a given time, and whose updates have a given density.

``python -m benchmarks.estimate_worker``; its master and where its numbers go are in ``GRADWIRE_*``.
The process ends with its parent.
"""

import argparse
import time

import numpy as np

from benchmarks.programs import announce, end_with_parent
from gradwire import join


def main() -> None:
    """Train until the parent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--density", type=float, required=True)
    options = parser.parse_args()
    end_with_parent()
    random = np.random.default_rng()
    parameters = random.normal(0, 0.1, options.parameters).astype(np.float32)
    changes = [random.normal(0, 1e-4, options.parameters).astype(np.float32) for _ in range(4)]
    session = join(parameters, target_density=options.density)
    announce(ready=True)
    for step in range(2**40):
        began = time.monotonic()
        parameters += changes[step % len(changes)]
        time.sleep(max(began + options.step_seconds - time.monotonic(), 0.0))
        session.step()


if __name__ == "__main__":
    main()
