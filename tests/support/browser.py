"""The page as people see it: a real Chromium in front of a real master with real workers."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from support.local_master import MasterProcess
from support.processes import Running
from support.waiting import PROCESS

WAIT_MILLISECONDS = 1000 * PROCESS
"""For all that the page does; machines are busy."""

WORKER = Path(__file__).with_name("watched_worker.py")


@contextmanager
def browsing() -> Iterator[Browser]:
    """Run Chromium: that of the system, or else one that Playwright has downloaded."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    with sync_playwright() as playwright:
        expect.set_options(timeout=WAIT_MILLISECONDS)
        chromium = playwright.chromium
        if found is None and not Path(chromium.executable_path).exists():
            pytest.skip("no Chromium: apt-get install chromium, or playwright install chromium")
        browser = chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, and all that it has complained of, and asked other hosts for."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MILLISECONDS)
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._note_request)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"alert: {dialog.message}"))

    def open(self, fragment: str = "") -> None:
        """Go to the page."""
        self.page.goto(f"{self.url}/{fragment}")

    def _note_message(self, message: ConsoleMessage) -> None:
        # What the master refuses, such as curves of a run that has just ended, the page shows or
        # leaves; Chromium logs it, too. That all files of the page are there has its own test.
        is_refusal = re.search(r"status of 40[14]\b", message.text)
        if message.type in ("error", "warning") and not is_refusal:
            self.complaints.append(f"{message.type}: {message.text}")

    def _note_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.netloc != urlsplit(self.url).netloc and address.scheme != "blob":
            self.complaints.append(f"asked {request.url}")


class WatchedRun:
    """A master, and workers that log.

    Parameters
    ----------
    options : str
        Of the master.
    settings : str
        Of the workers, as variables of their environment.
    """

    def __init__(
        self,
        *options: str,
        run: str = "default",
        series: Sequence[str] = ("loss",),
        settings: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self.run = run
        """That workers join which are started next."""
        self._series = series
        self.workers: list[Running] = []
        self.stack = ExitStack()
        """What is closed with it."""
        self.master = self.stack.enter_context(MasterProcess(*options))

    def __enter__(self) -> "WatchedRun":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://{self.master.http}"

    def start(self, workers: int) -> None:
        """Start workers, and wait until each has made a step."""
        command = ["env", *self._settings, sys.executable, str(WORKER)]
        command += [self.master.address, self.run, *self._series]
        started = [Running(command, stdin=subprocess.PIPE) for _ in range(workers)]
        for worker in started:
            self.stack.callback(worker.end)
        for worker in started:
            worker.read_line("a step of a worker")
        self.workers += started

    def finish(self) -> None:
        """Let all workers end their training, together."""
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for worker in self.workers:
            worker.wait()
        self.workers = []
