"""A worker that trains at a steady pace: a step every so often, as on an accelerator.

``python -m benchmarks.trainer``; everything it needs is in ``GRADWIRE_*``. It ends with its parent.
"""

import time
from typing import Final

import numpy as np

from benchmarks.programs import announce, end_with_parent
from gradwire import join

PARAMETERS: Final = 100_000
STEP_SECONDS: Final = 0.1
"""Of which the processor does a small part; the rest passes somewhere else."""


def main() -> None:
    """Train until the parent ends."""
    end_with_parent()
    random = np.random.default_rng()
    parameters = random.normal(0, 0.1, PARAMETERS).astype(np.float32)
    changes = [random.normal(0, 1e-3, PARAMETERS).astype(np.float32) for _ in range(4)]
    session = join(parameters)
    announce(ready=True)
    due = time.monotonic()
    step = 0
    while True:
        parameters += changes[step % len(changes)]
        session.step()
        step += 1
        due = max(due + STEP_SECONDS, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0)


if __name__ == "__main__":
    main()
