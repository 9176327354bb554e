"""`Block`: some lines at the foot of a terminal that change, below the lines of other processes.

All that a command writes goes through its block, which makes way for it. Where stderr is no
terminal there are no such lines, and what is written goes through unchanged.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from rich.cells import cell_len, set_cell_size

COLUMNS: Final = 80
"""Of a terminal that does not say how wide it is."""

ERASE_LINE: Final = "\r\x1b[2K"
ERASE_LINE_ABOVE: Final = "\x1b[A\x1b[2K"


class Block:
    """Lines on stderr."""

    def __init__(self) -> None:
        self.is_live: Final = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        """Whether there are lines that change."""
        self._lines: list[str] = []

    @property
    def columns(self) -> int:
        """How wide a line may be: a full one would have the terminal begin the next."""
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
        except (OSError, ValueError):
            columns = COLUMNS
        return max(columns - 1, 1)

    def write(self, stream: TextIO, text: str) -> None:
        """Write whole lines to stdout or stderr, above the block.

        Raises
        ------
        BrokenPipeError
            If nobody reads them any more.
        """
        self._erase()
        try:
            stream.write(text)
            stream.flush()
        except BrokenPipeError:
            # Python would try to write the rest of the buffer at its end, and show a second error.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            raise
        self._draw()

    def show(self, lines: Sequence[str]) -> None:
        """Show other lines; none take the block away."""
        if self.is_live:
            self._erase()
            columns = self.columns
            self._lines = [set_cell_size(line, columns).rstrip() for line in lines]
            self._draw()

    def _erase(self) -> None:
        if self._lines:
            # A terminal that has become narrower has broken lines into more rows.
            columns = self.columns + 1
            rows = sum(max(-(-cell_len(line) // columns), 1) for line in self._lines)
            self._write(ERASE_LINE + ERASE_LINE_ABOVE * (rows - 1))

    def _draw(self) -> None:
        if self._lines:
            self._write("\n".join(self._lines))

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:  # the terminal is gone
            self._lines = []
