"""Whole histories: ``python tests/simulation SEED... [--long | --crowd] [--mode MODE] [--jobs N]``.

One seed is shown: what is planned, and a line for everything that happens. Several seeds, or a
range of them as FIRST:LAST, are run on all cores; of those that fail is printed how to see them
again, and the exit status is 1. FIRST: goes on until Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice
from pathlib import Path
from time import monotonic, process_time
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from gradwire_protocol.messages.modes.mode import Mode, parse_mode
from support.plans import SHARING, Size
from support.playing import HistoryFailed, command_of, play

BATCH: Final = {"short": 25, "long": 2, "crowd": 1}
"""Seeds that a process is given at once."""

FAILURES_MAX: Final = 20
"""After so many it is over: they are of few kinds."""

SAY_SECONDS: Final = 10.0


def main() -> int:
    """Do what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python tests/simulation", description=__doc__)
    parser.add_argument("seeds", nargs="+", metavar="SEED", help="17, or 2000:3000, or 2000:")
    parser.add_argument("--long", action="store_true", help="histories with more of everything")
    parser.add_argument("--crowd", action="store_true", help="histories with 50 or 200 workers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--mode", type=parse_mode, default=SHARING, help="as averaging(every=2)")
    arguments = parser.parse_args()
    mode: Mode = arguments.mode
    size: Size = "long" if arguments.long else "crowd" if arguments.crowd else "short"
    if len(arguments.seeds) == 1 and ":" not in arguments.seeds[0]:
        return show(int(arguments.seeds[0]), size, mode)
    return soak(seeds_in(arguments.seeds), size, mode, arguments.jobs)


def show(seed: int, size: Size, mode: Mode) -> int:
    """Play one history, and print what happens in it."""
    try:
        play(seed, size, mode, show=sys.stdout)
    except HistoryFailed as failure:
        print(str(failure).partition("\n")[0], file=sys.stderr)
        return 1
    return 0


def seeds_in(texts: list[str]) -> Iterator[int]:
    """Return the seeds that were asked for."""
    for text in texts:
        first, colon, last = text.partition(":")
        if not colon:
            yield int(first)
        elif last:
            yield from range(int(first), int(last))
        else:
            yield from count(int(first))


def soak(seeds: Iterator[int], size: Size, mode: Mode, jobs: int) -> int:
    """Play many histories on many cores; return the exit status."""
    began = said_at = monotonic()
    played, seconds, failures = 0, 0.0, 0
    under_way: set[Future[tuple[int, float, list[str]]]] = set()
    with ProcessPoolExecutor(jobs) as pool:
        try:
            while failures < FAILURES_MAX:
                while len(under_way) < 2 * jobs and (batch := list(islice(seeds, BATCH[size]))):
                    under_way.add(pool.submit(play_all, batch, size, mode))
                if not under_way:
                    break
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    count_played, took, failed = future.result()
                    played, seconds = played + count_played, seconds + took
                    failures += len(failed)
                    for failure in failed:
                        print(failure, flush=True)
                if monotonic() - said_at > SAY_SECONDS:
                    said_at = monotonic()
                    say(played, seconds, failures, said_at - began)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
    say(played, seconds, failures, monotonic() - began)
    return 1 if failures else 0


def play_all(seeds: list[int], size: Size, mode: Mode) -> tuple[int, float, list[str]]:
    """Play some histories; return how many, the seconds it took, and what is wrong with each."""
    began, failed = process_time(), []
    for seed in seeds:
        try:
            play(seed, size, mode)
        except HistoryFailed as failure:
            failed.append(f"{str(failure).partition(chr(10))[0]}\n  {command_of(seed, size, mode)}")
    return len(seeds), process_time() - began, failed


def say(played: int, seconds: float, failures: int, lasted: float) -> None:
    """Print how far it is."""
    print(
        f"{played:>9,} histories in {lasted:.0f} s, {1000 * seconds / max(played, 1):.0f} ms of "
        f"CPU each, {failures} failed",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
