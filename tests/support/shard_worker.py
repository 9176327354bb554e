"""A worker with several masters, which counts what it trains.

``python shard_worker.py MASTERS [usual]``: it adds 1 to elements here and there until a line on
stdin tells it to finish. Then it prints a JSON object. When stdin ends first, it ends at once, for
its parent is gone. It misses a silent master after 3 s, or with ``usual`` as workers do.
"""

import json
import os
import sys
import threading
from typing import Final

import numpy as np

import gradwire

ELEMENTS: Final = 5_000
USUAL: Final = "usual"
IDLE_SECONDS: Final = 3.0
PACE_SECONDS: Final = 0.02


def main() -> None:
    """Train, and say what came of it."""
    told = threading.Event()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    random = np.random.default_rng()
    parameters = np.zeros(ELEMENTS, np.float32)
    trained = 0
    session = gradwire.join(
        parameters,
        master=sys.argv[1],
        threshold=0.5,
        shake_up_steps=0,
        feedback="local",
        finish_residual="send",
        finish_timeout_seconds=120.0,
        idle_timeout_seconds=None if USUAL in sys.argv else IDLE_SECONDS,
    )
    _say(rank=session.rank)
    while not told.wait(PACE_SECONDS):
        parameters[random.choice(ELEMENTS, 3, replace=False)] += 1.0
        trained += 1
        session.step()
    session.finish()
    stats = session.stats
    _say(
        digest=session.digest(),
        sum=float(parameters.sum(dtype=np.float64)),
        steps=trained,
        reconnections=stats.reconnections,
    )


def _say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _listen(told: threading.Event) -> None:
    if not sys.stdin.readline():
        os._exit(1)
    told.set()


if __name__ == "__main__":
    main()
