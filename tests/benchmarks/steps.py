"""Workers that train at a steady pace, and remember when they made each step.

``python -m benchmarks.steps``; their master and their settings are in ``GRADWIRE_*``. Each has
threads of its own. Told to go on, they announce their steps since the last time. The process ends
with its parent.
"""

import argparse
import threading
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.programs import announce, end_with_parent
from gradwire import Session, join
from gradwire_codecs.arrays import Float32Array

CHANGED_SHARE: Final = 64
"""One in so many parameters changes in a step: what an optimizer does is no part of any figure."""


class Trainer:
    """A worker, and the steps that it has made.

    Parameters
    ----------
    parameters, step_seconds, change
        How many, from one step to the next, and by how much.
    """

    def __init__(self, parameters: int, step_seconds: float, change: float) -> None:
        random = np.random.default_rng()
        self._parameters = random.normal(0, 0.1, parameters).astype(np.float32)
        size = parameters // CHANGED_SHARE
        self._changes = [random.normal(0, change, size).astype(np.float32) for _ in range(4)]
        self._step_seconds = step_seconds
        self._session = join(self._parameters)
        self._made: list[tuple[float, float, int, int]] = []
        threading.Thread(target=self._train, daemon=True).start()

    def take(self) -> Sequence[tuple[float, float, int, int]]:
        """Return the steps since this was asked last."""
        made, self._made = self._made, []
        return made

    def _train(self) -> None:
        due = time.monotonic()
        for i in range(2**40):
            _change(self._parameters, self._changes[i % len(self._changes)], i % CHANGED_SHARE)
            self._made.append(_step(self._session))
            due = max(due + self._step_seconds, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0.0))


def main() -> None:
    """Train until the parent ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--change", type=float, required=True)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    told = threading.Event()
    end_with_parent(told.set)
    trainers = [
        Trainer(options.parameters, options.step_seconds, options.change)
        for _ in range(options.workers)
    ]
    announce(ready=True)
    while True:
        told.wait()
        told.clear()
        announce(steps=[trainer.take() for trainer in trainers])


def _change(parameters: Float32Array, change: Float32Array, part: int) -> None:
    parameters[part * len(change) : (part + 1) * len(change)] += change


def _step(session: Session) -> tuple[float, float, int, int]:
    began = time.monotonic()
    session.step()
    ended = time.monotonic()
    stats = session.stats
    return ended, ended - began, stats.updates_applied, stats.reconnections


if __name__ == "__main__":
    main()
