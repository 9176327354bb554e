"""Fuzzing: ``python tests/fuzz [TARGET...] [--runs N] [--seconds S] [--turns T]``.

Without ``--runs`` or ``--turns`` it goes on until Ctrl-C, the targets taking turns. An input that
crashes a target, or takes more than a second or 64 MiB of memory, is kept under
``.cache/fuzz/crashes``, and the exit status is 1; ``python tests/fuzz TARGET FILE`` shows what is
wrong with it. ``--merge`` brings what was found into the corpus that is checked in, or begins it.
"""

import argparse
import os
import sys
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import corpus
from fuzz.campaign import Budget, Campaign, Turn, total

TURN_SECONDS: Final = 60
"""Length of a turn, where the number of executions does not end it."""


def main() -> int:
    """Do what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(corpus.TARGETS))
    parser.add_argument("--runs", type=int, help="executions of each target, then stop")
    parser.add_argument("--seconds", type=int, help="length of a turn of one target")
    parser.add_argument("--turns", type=int, help="turns of each target, then stop")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="turns at once")
    parser.add_argument("--seed", type=int, help="of libFuzzer's generator")
    parser.add_argument("--merge", action="store_true", help="check in what was found")
    arguments = parser.parse_args()
    targets = [name for name in arguments.targets if name in corpus.TARGETS]
    files = [Path(name) for name in arguments.targets if name not in corpus.TARGETS]
    if files and (len(targets) != 1 or not all(file.is_file() for file in files)):
        parser.error(f"neither targets nor files for one: {', '.join(map(str, files))}")
    targets = targets or list(corpus.TARGETS)
    if files:
        return replay(targets[0], files)
    return fuzz(targets, arguments)


def replay(name: str, files: list[Path]) -> int:
    """Run a target on inputs in this process, where a debugger can follow."""
    target = corpus.load(name)
    for file in files:
        target.check(file.read_bytes())
        print(f"{name}: nothing wrong with {file}")
    return 0


def fuzz(targets: list[str], arguments: argparse.Namespace) -> int:
    """Let targets take turns; return the exit status."""
    campaign = Campaign()
    if arguments.merge:
        for name in targets:
            campaign.merge(name)
        return 0
    seconds = arguments.seconds or (None if arguments.runs else TURN_SECONDS)
    turns = arguments.turns or (1 if arguments.runs else None)
    sums = {name: Turn(name) for name in targets}
    began = monotonic()
    for number in range(turns) if turns else count():
        seed = None if arguments.seed is None else arguments.seed + number
        budget = Budget(arguments.runs, seconds, seed)
        for turn in campaign.take_turns(targets, budget, arguments.jobs):
            sums[turn.target] = sums[turn.target].then(turn)
        for turn in (*sums.values(), total(sums.values())):
            show(turn)
        print(f"{monotonic() - began:.0f} seconds\n", flush=True)
        if campaign.interrupted or any(turn.failure for turn in sums.values()):
            break
    failures = [turn.failure for turn in sums.values() if turn.failure]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def show(turn: Turn) -> None:
    """Print the figures of a target."""
    rate = f"{turn.executions / turn.seconds:,.0f}" if turn.seconds else "?"
    print(
        f"{turn.target:>14}  {turn.executions:>12,} executions  {rate:>8}/s  "
        f"+{turn.growth_mib:>3} MiB  {turn.features:>6} features  {turn.inputs:>5} inputs"
        + ("  FAILED" if turn.failure else "")
    )


if __name__ == "__main__":
    sys.exit(main())
