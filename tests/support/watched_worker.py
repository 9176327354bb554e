"""A worker that people watch: it trains and logs until it is told to end. A process of its own.

::

    python watched_worker.py MASTER RUN SERIES...

A series of the name ``infinite`` is that.

Each line on stdout is a step that it has made; it ends when stdin is closed.
"""

import sys
import threading
from time import sleep

import numpy as np

import gradwire

PARAMETERS = 20_000

STEP_SECONDS = 0.02


def main(master: str, run: str, *series: str) -> None:
    """Train until nobody wants more."""
    over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    parameters = np.zeros(PARAMETERS, np.float32)
    with gradwire.join(parameters, master=master, run=run) as session:
        random = np.random.default_rng(session.rank)
        while not over.is_set() and session.stopping is None:
            parameters += random.normal(0.0, 1e-3, parameters.size).astype(np.float32)
            session.step()
            steps = session.stats.steps
            for place, name in enumerate(series):
                value = np.inf if name == "infinite" else (place + 1) / steps
                session.log({name: value + 0.01 * random.normal()})
            sys.stdout.write(f"{steps}\n")
            sys.stdout.flush()
            sleep(STEP_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
