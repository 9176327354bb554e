"""The process that compiles for ``gradwire warm-up``; its stdout says how far that has got."""

import sys
from threading import Event, Thread
from typing import Final

from gradwire_codecs import warm_up
from gradwire_codecs.kernels.compiling import progress
from gradwire_codecs.warm_up import warm_up_optimizers

REPORT_SECONDS: Final = 0.2


def main() -> None:
    """Compile, and write how many kernels are ready, of how many, again and again."""
    over = Event()

    def say() -> None:
        while not over.wait(REPORT_SECONDS):
            sys.stdout.write("{} {}\n".format(*progress()))
            sys.stdout.flush()

    thread = Thread(target=say, name="gradwire-report", daemon=True)
    thread.start()
    warm_up()
    warm_up_optimizers()  # also what only some masters need: an image may be read-only
    over.set()
    thread.join()


if __name__ == "__main__":
    main()
