"""A worker of benchmark `modes` beside others of which one is slow, or is killed.

``python -m benchmarks.hindered_worker MODE WORKERS STEPS STEP_SECONDS DIES_AT``, with the master
and a key in ``GRADWIRE_*``. It makes steps that a device would take so long for, and says when each
was over. At step DIES_AT it kills itself, without a word; 0 for never. It ends with its parent.
"""

import os
import signal
import sys
import time
from typing import Final

import numpy as np

import gradwire
from benchmarks.programs import announce
from gradwire_protocol.messages.modes.mode import parse_mode

ELEMENTS: Final = 10_000


def main() -> None:
    """Train once told to."""
    mode, workers, steps, seconds, dies_at = sys.argv[1], *map(float, sys.argv[2:6])
    announce(ready=True)
    for _ in sys.stdin:
        announce(ends=train(mode, int(workers), int(steps), seconds, int(dies_at)))


def train(mode: str, workers: int, steps: int, seconds: float, dies_at: int) -> list[float]:
    """Make steps; return when each was over, in seconds since all took part."""
    target = np.zeros(ELEMENTS, np.float32)
    change = np.random.default_rng().normal(0, 1e-3, ELEMENTS).astype(np.float32)
    has_optimizer = parse_mode(mode).optimizer is not None
    ends = []
    with gradwire.join(target, mode=mode, workers=workers, log_level="warning") as session:
        began = time.monotonic()
        for step in range(1, steps + 1):
            time.sleep(seconds)  # a device computes meanwhile, and needs no processor
            if step == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if has_optimizer:
                session.push(change)
                session.pull()
            else:
                target += np.roll(change, step)
                session.step()
            ends.append(time.monotonic() - began)
    return ends


if __name__ == "__main__":
    main()
