"""`Viewing`: a picture that changes, until people have seen enough; or lines, or one picture.

The first answer has to come. Afterwards a master that does not answer is asked again and again, and
its last picture stays.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import Final

from rich.console import Console, Group
from rich.live import Live

from gradwire.cli.top.advance import Advance
from gradwire.cli.top.documents import Documents, Reader
from gradwire.cli.top.figures import Picture, Run
from gradwire.cli.top.keys import Key, Keys
from gradwire.cli.top.screen import View, frame, offset_max, page_rows
from gradwire.cli.top.text import plain, show_duration
from gradwire.errors import GradwireError

COLUMNS: Final = 120
"""Of what is no terminal."""

LINE_COLUMNS_MAX: Final = 1_000
"""Of a line that goes into a file."""

KEEP_LINES: Final = "\x1b[?7l"
WRAP_LINES: Final = "\x1b[?7h"
"""Terminals differ in how wide some characters are: what is wider than reckoned is cut off."""


class Viewing:
    """Shows what a reader reads.

    Parameters
    ----------
    reader : Reader
    run : str, optional
        The run to show; all without it.
    console : Console
        Of stdout.
    """

    def __init__(self, reader: Reader, run: str | None, console: Console) -> None:
        self._reader = reader
        self._only = run
        self._console = console
        self._view = View(plain(reader.place), Picture(), run)
        self._answered_at = 0.0
        self._error = ""
        self._has_ended = False
        self._is_to_stop = False
        """Whether the shell is to have the terminal for some time: Ctrl-Z."""
        self._changed = asyncio.Event()

    async def show_once(self) -> None:
        """Show one picture."""
        self._take(await self._reader.read(self._only))
        columns = self._console.width if self._console.is_terminal else COLUMNS
        for line in frame(self._view, columns, None):
            self._console.print(line, soft_wrap=True)

    async def show_json(self) -> None:
        """Show the documents of which a picture is made, as one JSON object."""
        found = await self._reader.read(self._only)
        runs = {
            name: {
                "run": document,
                "events": found.events.get(name),
                "series": found.series.get(name),
            }
            for name, document in found.runs.items()
        }
        sys.stdout.write(json.dumps({"overview": found.overview, "runs": runs}) + "\n")

    async def print_lines(self) -> None:
        """Print a line for each run, again and again, for a file or a pipe."""
        with _silent_log():
            self._take(await self._reader.read(self._only, details=False))
            while True:
                self._print_runs()
                self._take(await self._next_documents())

    def _print_runs(self) -> None:
        for run in self._view.picture.runs:
            if self._only in (None, run.key):
                line = f"{run.name}: {Advance.of(run, self._view.picture).line(LINE_COLUMNS_MAX)}"
                self._console.print(line, soft_wrap=True, markup=False)

    async def _next_documents(self) -> Documents:
        """Return the next answer, however long it takes; say once why it does not come."""
        said = ""
        while True:
            await asyncio.sleep(self._reader.every_seconds)
            try:
                return await self._reader.read(self._only, details=False)
            except GradwireError as error:
                if said != str(error):
                    said = str(error)
                    sys.stderr.write(f"gradwire top: {plain(said)}; trying again\n")

    async def watch(self) -> None:
        """Show a picture that changes, until people end it."""
        with _silent_log():
            self._take(await self._reader.read(self._only))
            asking = asyncio.create_task(self._ask())
            asking.add_done_callback(lambda _: self._end())
            try:
                while not self._has_ended:
                    await self._draw_on()
                    if self._is_to_stop:
                        self._is_to_stop = False
                        os.kill(os.getpid(), signal.SIGSTOP)  # until the shell has it go on
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking

    async def _draw_on(self) -> None:
        """Have the terminal, and draw what has changed, until that has to end."""
        with ExitStack() as stack:
            if sys.stdin is not None and Keys.can_be_read(sys.stdin.fileno()):
                stack.enter_context(Keys(sys.stdin.fileno(), self._on_key).read())
                self._view = replace(self._view, has_keys=True)
            live = stack.enter_context(Live(console=self._console, screen=True, auto_refresh=False))
            stack.enter_context(self._signals())
            stack.callback(self._write, WRAP_LINES)
            self._write(KEEP_LINES)
            while not (self._has_ended or self._is_to_stop):
                self._changed.clear()
                size = self._console.size
                view = replace(self._view, note=self._note)
                live.update(Group(*frame(view, size.width, size.height)), refresh=True)
                await self._changed.wait()

    def _write(self, sequence: str) -> None:
        with suppress(OSError):  # the terminal is gone
            self._console.file.write(sequence)
            self._console.file.flush()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Draw again where the terminal has another size; give it back to the shell for Ctrl-Z."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGTSTP)

    def _stop(self) -> None:
        self._is_to_stop = True
        self._changed.set()

    def _end(self) -> None:
        self._has_ended = True
        self._changed.set()

    async def _ask(self) -> None:
        """Ask again and again; what is no fault of the master ends the picture."""
        while True:
            await asyncio.sleep(self._reader.every_seconds)
            try:
                self._take(await self._reader.read(self._only))
            except GradwireError as error:
                self._error = plain(str(error))
            self._changed.set()

    @property
    def _note(self) -> str:
        """What is wrong; empty where nothing is."""
        if not self._error:
            return ""
        ago = show_duration(monotonic() - self._answered_at)
        return f"{ago} old, and asking again: {self._error}"

    def _take(self, documents: Documents) -> None:
        """Look at what has come."""
        now = monotonic()
        picture, before = Picture.of(documents), self._view.picture
        seconds = now - self._answered_at
        runs = tuple(with_rate(run, before.run(run.key), seconds) for run in picture.runs)
        self._view = replace(self._view, picture=replace(picture, runs=runs))
        chosen = self._view.chosen
        if self._only is None and (chosen is None or not chosen.is_read):
            self._view = replace(self._view, run=None)
        self._answered_at, self._error = now, ""

    # Keys.

    def _on_key(self, key: Key) -> None:
        view, rows = self._view, self._console.size.height
        page = page_rows(view, rows)
        moves = {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page}
        last = offset_max(view, rows)
        match key:
            case Key.QUIT:
                self._has_ended = True
            case Key.NEXT | Key.PREVIOUS:
                run = self._neighbour(1 if key is Key.NEXT else -1)
                self._view = replace(view, run=run, offset=0)
            case Key.FIRST | Key.LAST:
                self._view = replace(view, offset=0 if key is Key.FIRST else last)
            case _:
                offset = min(max(min(view.offset, last) + moves[key], 0), last)
                self._view = replace(view, offset=offset)
        self._changed.set()

    def _neighbour(self, step: int) -> str | None:
        """Return the run after, or before, the one that is shown; None for all of them."""
        if self._only is not None:
            return self._only
        choices = [None, *(run.key for run in self._view.picture.runs if run.is_read)]
        if len(choices) <= 2:
            return None
        place = choices.index(self._view.run) if self._view.run in choices else 0
        return choices[(place + step) % len(choices)]


def with_rate(run: Run, before: Run | None, seconds: float) -> Run:
    """Return a run with its rate of updates, also where the master does not say it."""
    if run.updates_per_second is not None or before is None or seconds <= 0:
        return run
    if run.updates is None or before.updates is None:
        return run
    rate = max(run.updates - before.updates, 0.0) / seconds
    return replace(run, updates_per_second=rate)


@contextmanager
def _silent_log() -> Iterator[None]:
    """Keep log lines out of the picture: it says itself what is wrong.

    The handlers stay where they are, or a session would take logging for not set up.
    """
    handlers = list(logging.getLogger("gradwire").handlers)
    for handler in handlers:
        handler.addFilter(_let_nothing_through)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_let_nothing_through)


def _let_nothing_through(record: logging.LogRecord) -> bool:
    del record
    return False
