"""`Progress`: how far local workers are, as their masters say, in a block or in plain lines.

Nothing depends on it: where no master can be asked, there is no progress to be seen.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from gradwire.cli.launch.block import Block
from gradwire.errors import GradwireError, UsageError
from gradwire_udp.files.tokens import read_token

if TYPE_CHECKING:
    from gradwire.cli.top.advance import Advance
    from gradwire.cli.top.documents import Reader
    from gradwire.cli.top.figures import Picture, Run

FIRST_SECONDS: Final = 2.0
"""Before the first look, so that a short run is over before anything is imported for it."""

BLOCK_SECONDS: Final = 1.0

LINE_SECONDS: Final = 10.0
"""Between two lines where there is no terminal."""


class Progress:
    """Shows progress until it is cancelled.

    Parameters
    ----------
    block : Block
    places : sequence of str
        ``host:port`` of the masters' pages.
    alive : callable
        Returns how many workers run, and how many were started.
    """

    def __init__(
        self, block: Block, places: Sequence[str], alive: Callable[[], tuple[int, int]]
    ) -> None:
        self._block = block
        self._places = places
        self._alive = alive
        self._pace = Pace()

    async def show_on(self) -> None:
        """Look and show, again and again."""
        if not self._places:
            return
        seconds = BLOCK_SECONDS if self._block.is_live else LINE_SECONDS
        await asyncio.sleep(FIRST_SECONDS if self._block.is_live else LINE_SECONDS)
        # aiohttp takes some tenths of a second, which workers need at their start.
        from gradwire.cli.top.http_reader import HttpReader

        token = token_of(os.environ)
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(HttpReader(place, token)) for place in self._places
            ]
            while True:
                self._show(await self._look(readers))
                await asyncio.sleep(seconds)

    def _show(self, advance: "Advance | None") -> None:
        if self._block.is_live:
            columns = self._block.columns
            self._block.show([] if advance is None else advance.lines(columns, "gradwire run"))
        elif advance is not None:
            line = ", ".join(advance.parts)
            self._block.write(sys.stderr, f"gradwire run: {line}\n")

    async def _look(self, readers: Sequence["Reader"]) -> "Advance | None":
        """Return how far the run is; None where nothing is known of it."""
        from gradwire.cli.top.advance import Advance
        from gradwire.cli.top.figures import Picture

        pictures: list[Picture] = []
        for reader in readers:
            try:
                pictures.append(Picture.of(await reader.read(None, details=False)))
            except GradwireError:
                continue
        runs = [run for picture in pictures for run in picture.runs]
        if not runs:
            return None
        # Of several masters, the first has what workers log.
        run = max(runs, key=lambda each: (each.steps is not None, len(each.workers)))
        alive, started = self._alive()
        return Advance.of(
            run,
            alive=alive,
            started=started,
            up_bytes_per_second=total(pictures, "received_bytes_per_second"),
            down_bytes_per_second=total(pictures, "sent_bytes_per_second"),
            remaining_seconds=self._pace.remaining_seconds(run, monotonic()),
        )


class Pace:
    """How long the items of a run will take, by how long those before them have taken."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}
        """Of each work, when it was first looked at, and how many items were done."""

    def remaining_seconds(self, run: "Run", now: float) -> float | None:
        """Return how long the works in progress will take; None where that is not known."""
        longest: float | None = None
        for work in run.works:
            began, done = self._first.setdefault(work.name, (now, work.done))
            left = work.total - work.done
            if left > 0 and work.done > done:
                seconds = left * (now - began) / (work.done - done)
                longest = max(longest or 0.0, seconds)
        return longest


def total(pictures: Sequence["Picture"], figure: str) -> float | None:
    """Return the sum of a figure of several masters; None if none has it."""
    values = [value for each in pictures if (value := each.figure(figure)) is not None]
    return sum(values) if values else None


def token_of(environ: Mapping[str, str]) -> bytes | None:
    """Return the token that masters started here want, as their environment says."""
    file = environ.get("GRADWIRE_HTTP_TOKEN_FILE") or environ.get(
        "GRADWIRE_HTTP_OPERATOR_TOKEN_FILE"
    )
    try:
        return read_token(Path(file)) if file else None
    except UsageError:
        return None  # the master says so
