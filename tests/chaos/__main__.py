"""Chaos for as long as one likes: ``python tests/chaos --seconds 3600 --seed 1``.

Prints how it goes on, and in the end what was killed and what each process took. Fails, with what
is wrong, where an update is lost or a process takes more and more memory or files.
"""

import argparse
import sys
from pathlib import Path
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.chaos import Chaos, Plan

OPTIONS = ("--rejoin-seconds", "20", "--update-log-mib-max", "4")
"""Ranks of the dead are given to others, and the log of updates is full before it is measured."""


def main() -> None:
    """Run one history."""
    parser = argparse.ArgumentParser(prog="python tests/chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=6, help="at once")
    parser.add_argument("--master-seconds", type=float, default=300.0, metavar="SECONDS",
                        help="between two deaths of the master")  # fmt: skip
    arguments = parser.parse_args()
    plan = Plan(
        seed=arguments.seed,
        seconds=arguments.seconds,
        workers=arguments.workers,
        master_seconds=arguments.master_seconds,
    )
    folder = Path(mkdtemp(prefix="gradwire-chaos-"))
    print(f"seed {plan.seed}; accounts and logs are in {folder}", flush=True)
    outcome = Chaos(plan, folder, *OPTIONS, tell=lambda line: print(line, flush=True)).run()
    outcome.check()
    for line in outcome.check_growth():
        print(line)
    # Who was killed before its first step has an account without it.
    updates = sum(lines[-1].get("sent", 0) for _, lines in outcome.accounts)
    print(
        f"{outcome.workers_killed} workers and {outcome.masters_killed} masters killed, "
        f"{outcome.stood_still} stood still, {updates} updates: none is lost"
    )


if __name__ == "__main__":
    main()
