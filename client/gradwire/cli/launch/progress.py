"""How far a run on this machine is: a line at the foot of a terminal, or one now and then."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

TERMINAL_SECONDS: Final = 1.0
LINE_SECONDS: Final = 10.0
"""How often the line changes in a terminal, and how often there is one elsewhere."""

ERASE: Final = "\r\x1b[K"


async def follow(
    http: str,
    token_file: Path,
    show: Callable[[str], None],
    every: float,
    steps: int | None = None,
) -> None:
    """Show what a master says of its run, until this is cancelled.

    Parameters
    ----------
    http : str
        ``host:port`` where it serves HTTP.
    token_file : Path
        With a token that it takes.
    show : callable
        Is given a line.
    every : float
        Seconds.
    steps : int, optional
        How many each worker makes.
    """
    # Not at the top: a start does not wait for them.
    from gradwire.cli.master_http import MasterHttp, read_token
    from gradwire.cli.top.documents import read
    from gradwire.cli.top.screen import line_of, runs_in

    master = MasterHttp(http, read_token(token_file))
    while True:
        await asyncio.sleep(every)
        # Nothing that is shown may end a run. A master that has died is started again.
        with suppress(Exception):
            for run in runs_in(await asyncio.to_thread(read, master, None)):
                show(line_of(run, steps))


class Foot:
    """The last line of a terminal, below what others write; it is on stderr."""

    def __init__(self) -> None:
        self._text = ""

    def show(self, text: str) -> None:
        """Have this text there, as much of it as fits; none where it is empty."""
        self.hide()
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        self._text = text[: columns - 1]
        self.show_again()

    def hide(self) -> None:
        """Make room for another line."""
        if self._text:
            sys.stderr.write(ERASE)
            sys.stderr.flush()

    def show_again(self) -> None:
        """Show what was there below that line."""
        if self._text:
            sys.stderr.write(self._text)
            sys.stderr.flush()
