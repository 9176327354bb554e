"""The pictures in the documentation of a real run with four workers, one of them killed.

They are of the master's page and of `gradwire top`. ``make pictures`` draws them again.
"""

import io
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, expect
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from support.browser import WAIT_MILLISECONDS, browsing
from support.local_master import MasterProcess
from support.processes import Running

SCRIPT: Final = Path(__file__).parents[2] / "docs" / "examples" / "train.py"

WORKERS: Final = 4
TERMINAL: Final = (
    "background: #0c0c0c; color: #d9d9d9; font: 14px/1.25 monospace; padding: 12px; margin: 0; "
    "display: inline-block"
)
"""How a terminal looks, as a style."""

STEPS_BEFORE: Final = 150
STEPS_AFTER: Final = 60
"""Of the least advanced worker, before one is killed, and then until the picture."""

SIZES: Final = {"wide": (1400, 1650), "narrow": (400, 860)}
"""Width and height in pixels."""


def main(folder: str) -> None:
    """Draw all pictures into a folder."""
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess())
        command = [sys.executable, str(SCRIPT), "--steps", "100000", "--workers", str(WORKERS)]
        settings = {"GRADWIRE_MASTER": master.address, "OMP_NUM_THREADS": "1"}
        workers = [
            stack.enter_context(
                Running(["env", *(f"{k}={v}" for k, v in settings.items()), *command])
            )
            for _ in range(WORKERS)
        ]
        browser = stack.enter_context(browsing())
        pages = {}
        for size, (width, height) in SIZES.items():
            for theme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                )
                page = context.new_page()
                page.set_default_timeout(WAIT_MILLISECONDS)
                page.goto(f"http://{master.announcement['http']}/")
                pages[f"page-{size}-{theme}.png"] = page
        first = next(iter(pages.values()))
        wait_for_steps(first, STEPS_BEFORE)
        workers[-1].send_signal(signal.SIGKILL)
        expect(first.locator("#event-list")).to_contain_text("is gone", timeout=60_000)
        wait_for_steps(first, least_steps(first) + STEPS_AFTER)
        for name, page in pages.items():
            page.bring_to_front()
            expect(page.locator(".chart canvas").first).to_be_visible()
            page.mouse.move(5, 5)
            page.screenshot(path=Path(folder, name))
        draw_top(browser, str(master.announcement["http"]), Path(folder, "top.png"))


def draw_top(browser: Browser, http: str, path: Path) -> None:
    """Draw what `gradwire top` shows in a terminal of 100 columns."""
    command = [sys.executable, "-m", "gradwire", "top", "--once", "--http", http]
    environment = {**os.environ, "COLUMNS": "100", "LINES": "30", "FORCE_COLOR": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(Text.from_ansi(done.stdout))
    page = browser.new_context(device_scale_factor=2).new_page()
    page.set_content(
        console.export_html(
            theme=MONOKAI, inline_styles=True, code_format=f"<pre style='{TERMINAL}'>{{code}}</pre>"
        )
    )
    page.locator("pre").screenshot(path=path)


def least_steps(page: Page) -> int:
    """Return how many steps the least advanced worker has made, as the page says."""
    tile = page.locator("#summary .tile", has_text=re.compile("^Steps[0-9]")).inner_text()
    found = re.search(r"([\d,]+)", tile)
    return 0 if found is None else int(found[1].replace(",", ""))


def wait_for_steps(page: Page, steps: int) -> None:
    """Wait until all workers have made so many steps."""
    page.wait_for_function(
        """least => {
            const cells = [...document.querySelectorAll('#roster tbody tr')]
                .filter(row => row.querySelector('.state')?.dataset.state === 'live')
                .map(row => Number(row.children[4].textContent.replaceAll(',', '')));
            return cells.length > 0 && Math.min(...cells) >= least;
        }""",
        arg=steps,
        timeout=300_000,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
