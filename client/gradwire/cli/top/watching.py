"""A picture that changes until people have seen enough, or lines for a file, or one picture.

The first answer has to come. A master that does not answer later is asked again, and its last
picture stays.
"""

import json
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Final

from rich.console import Console
from rich.live import Live

from gradwire.cli.master_http import MasterHttp, plain
from gradwire.cli.top.documents import read
from gradwire.cli.top.screen import frame, line_of, runs_in, show_duration
from gradwire.errors import GradwireError

COLUMNS: Final = 120
"""Of what is no terminal."""

QUIT: Final = frozenset(b"qQ")


def show_once(master: MasterHttp, run: str | None, console: Console, *, as_json: bool) -> None:
    """Show one picture, or the documents that it is made of."""
    found = read(master, run)
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    if not console.is_terminal:
        console.width = COLUMNS
    console.print(frame(found, master.url, console.width, None))


def print_lines(master: MasterHttp, run: str | None, console: Console, every: float) -> None:
    """Print a line for each run, again and again."""
    found, said = read(master, run), ""
    while True:
        for each in runs_in(found) if not said else ():
            console.print(line_of(each), soft_wrap=True)
        sleep(every)
        try:
            found, said = read(master, run), ""
        except GradwireError as error:
            if said != str(error):
                said = str(error)
                sys.stderr.write(f"gradwire: {said}; trying again\n")


def watch(master: MasterHttp, run: str | None, console: Console, every: float) -> None:
    """Show a picture that changes, until q ends it."""
    found, answered_at, problem = read(master, run), monotonic(), ""
    with _quit_key() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            note = ""
            if problem:
                ago = show_duration(monotonic() - answered_at)
                note = f"{ago} old, and asking again: {problem}"
            size = console.size
            live.update(frame(found, master.url, size.width, size.height, note), refresh=True)
            if pressed(every):
                return
            try:
                found, answered_at, problem = read(master, run), monotonic(), ""
            except GradwireError as error:
                problem = plain(str(error))


@contextmanager
def _quit_key() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits so many seconds, or until q; nothing that is typed is shown."""
    terminals = [sys.stdin.fileno()] if sys.stdin is not None and sys.stdin.isatty() else []
    before = [termios.tcgetattr(terminal) for terminal in terminals]

    def pressed(seconds: float) -> bool:
        until = monotonic() + seconds
        while ready := select.select(terminals, [], [], max(until - monotonic(), 0.0))[0]:
            typed = os.read(ready[0], 64)
            if not typed or QUIT & set(typed):
                return True
        return False

    try:
        for terminal in terminals:
            tty.setcbreak(terminal)
        yield pressed
    finally:
        for terminal, mode in zip(terminals, before, strict=True):
            termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
