"""Whole histories: ``python tests/simulation SEED... [--long | --crowd] [--bursty] [--mode MODE]``.

One seed is shown: what is planned, and a line for everything that happens. Several seeds, or a
range of them as FIRST:LAST, are run on all cores; of those that fail is printed how to see them
again, and the exit status is 1. FIRST: goes on until Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import count, islice
from pathlib import Path
from time import monotonic, process_time
from typing import Final, TypeAlias

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
    parser.add_argument("--bursty", action="store_true", help="losses come in bursts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--mode", type=parse_mode, default=SHARING, help="as averaging(every=2)")
    arguments = parser.parse_args()
    mode: Mode = arguments.mode
    size: Size = "long" if arguments.long else "crowd" if arguments.crowd else "short"
    how = partial(play, size=size, mode=mode, bursty=arguments.bursty)
    if len(arguments.seeds) == 1 and ":" not in arguments.seeds[0]:
        return show(int(arguments.seeds[0]), how)
    again = partial(command_of, size=size, mode=mode, bursty=arguments.bursty)
    return soak(
        seeds_in(arguments.seeds), BATCH[size], partial(play_all, how, again), arguments.jobs
    )


def show(seed: int, how: Callable[..., object]) -> int:
    """Play one history, and print what happens in it."""
    try:
        how(seed, show=sys.stdout)
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


Played: TypeAlias = tuple[int, float, list[str]]
"""How many histories, the seconds they took, and what is wrong with each."""


def soak(
    seeds: Iterator[int], batch_size: int, play_batch: Callable[[list[int]], Played], jobs: int
) -> int:
    """Play many histories on many cores; return the exit status."""
    began = said_at = monotonic()
    played, seconds, failures = 0, 0.0, 0
    under_way: set[Future[Played]] = set()
    with ProcessPoolExecutor(jobs) as pool:
        try:
            while failures < FAILURES_MAX:
                while len(under_way) < 2 * jobs and (batch := list(islice(seeds, batch_size))):
                    under_way.add(pool.submit(play_batch, batch))
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


def play_all(how: Callable[..., object], again: Callable[..., str], seeds: list[int]) -> Played:
    """Play some histories; return what came of them."""
    began, failed = process_time(), []
    for seed in seeds:
        try:
            how(seed)
        except HistoryFailed as failure:
            failed.append(f"{str(failure).partition(chr(10))[0]}\n  {again(seed)}")
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
