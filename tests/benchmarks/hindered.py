"""What a slow worker costs the others in each run mode, and what the death of one does."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from statistics import median

from benchmarks.figures import Figure, at_least, within
from benchmarks.masters import Master, form
from benchmarks.programs import Program, start_together
from gradwire_protocol.messages.modes.mode import parse_mode

SLOWER = 3
"""How many times as long the slow worker takes for a step."""

IDLE_SECONDS = 30.0
"""After so long the master takes a worker for lost, unless it is told otherwise."""

DEATH_AIM = 1.1 * IDLE_SECONDS
"""Nobody's death may cost more, once: what is unsaid is noticed by the master's clock."""

STEPS_AIM = 0.95
GRACE_AIM = 1.0
"""In modes whose rounds wait for nobody: the portion of steps, and seconds."""


def hindered_figures(
    modes: Sequence[str], *, workers: int, steps: int, step_seconds: float, keys: bool, kills: bool
) -> list[Figure]:
    """Return for each mode how fast the others are beside a slow worker, and their longest wait."""
    figures = []
    of = f"{workers} workers, {form(keys=keys)}"
    for mode in modes:
        print(f"hindered: {mode}", file=sys.stderr)
        waits = parse_mode(mode).waits_for_all
        slow = [step_seconds] * (workers - 1) + [SLOWER * step_seconds]
        usual = _train(mode, [step_seconds] * workers, steps, keys=keys)
        beside = _train(mode, slow, steps, keys=keys)
        figures.append(
            at_least(f"steps beside one that is {SLOWER} times slower, {mode}, {of}",
                     _rate(beside), "/s", "all are equally fast", _rate(usual),
                     aim=0.0 if waits else STEPS_AIM,
                     runs=workers - 1)
        )  # fmt: skip
        if kills:
            beside = _train(mode, [step_seconds] * workers, steps, keys=keys, dies_at=steps // 2)
            wait = max(max(_gaps(ends)) for ends in beside)
            figures.append(
                within(f"longest step where one is killed, {mode}, {of}", wait, "s",
                       "until the master takes a worker for lost", IDLE_SECONDS,
                       aim=DEATH_AIM if waits else GRACE_AIM,
                       runs=workers - 1)
            )  # fmt: skip
    return figures


def _train(
    mode: str, seconds: Sequence[float], steps: int, *, keys: bool, dies_at: int = 0
) -> list[list[float]]:
    """Train with a worker for each duration of a step; return when steps of all but the last end.

    The last worker dies at a step, if one is given.
    """
    with ExitStack() as stack:
        master = stack.enter_context(Master(keys=keys))
        starts = []
        for at, each in enumerate(seconds, 1):
            last = dies_at if at == len(seconds) else 0
            arguments = (mode, str(len(seconds)), str(steps), str(each), str(last))
            starts.append(
                partial(
                    Program,
                    "benchmarks.hindered_worker",
                    *arguments,
                    environ=master.environ(),
                    quiet=True,
                )
            )
        programs = start_together(stack, starts)
        for program in programs:
            program.tell("train")
        return [program.read()["ends"] for program in programs[:-1]]


def _gaps(ends: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)]


def _rate(workers: Sequence[Sequence[float]]) -> float:
    """Return the steps a second of a worker in the middle, without the first quarter."""
    return median(
        len(late) / (ends[-1] - ends[-1 - len(late)])
        for ends in workers
        for late in [ends[len(ends) // 4 + 1 :]]
    )
