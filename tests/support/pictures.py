"""The pictures in docs of a real run with four workers, one killed: the master's page, and `top`.

Of its layers there is one by itself.

``make pictures`` draws them again.
"""

import io
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Page, expect
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from gradwire.cli.master_http import MasterHttp
from gradwire.cli.top.documents import read
from gradwire.cli.top.screen import frame
from support.browser import WAIT_MILLISECONDS, browsing
from support.local_master import MasterProcess
from support.processes import Running

SCRIPT: Final = Path(__file__).parents[2] / "docs" / "examples" / "train.py"

WORKERS: Final = 4

STEPS_BEFORE: Final = 150
STEPS_AFTER: Final = 60
"""Of the least advanced worker, before one is killed, and then until the picture."""

PICTURES: Final = {"page-wide-light": (1400, 1100), "page-narrow-dark": (400, 860)}
"""Width and height in pixels."""

TOP_COLUMNS: Final = 104

COLOURS: Final = 128
"""Of a picture, which then has a third of the bytes."""


def main(folder: str) -> None:
    """Draw all pictures into a folder."""
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess())
        command = [sys.executable, str(SCRIPT), "--steps", "100000", "--workers", str(WORKERS)]
        settings = {
            "GRADWIRE_MASTER": master.address,
            "GRADWIRE_LOG_HISTOGRAMS_EVERY": "5",
            "OMP_NUM_THREADS": "1",
        }
        started = ["env", *(f"{name}={value}" for name, value in settings.items()), *command]
        workers = [stack.enter_context(Running(started)) for _ in range(WORKERS)]
        browser = stack.enter_context(browsing())
        pages = {}
        for name, (width, height) in PICTURES.items():
            context = browser.new_context(viewport={"width": width, "height": height})
            page = context.new_page()
            page.emulate_media(color_scheme="dark" if name.endswith("dark") else "light")
            page.set_default_timeout(WAIT_MILLISECONDS)
            page.goto(f"http://{master.http}/")
            pages[Path(folder, f"{name}.png")] = page
        first = next(iter(pages.values()))
        wait_for_steps(first, STEPS_BEFORE)
        layers = Path(folder, "page-layers.png")
        first.locator("#layers").scroll_into_view_if_needed()
        first.locator("#layers canvas").wait_for()
        first.locator("#layers").screenshot(path=layers)
        first.evaluate("scrollTo(0, 0)")
        workers[-1].send_signal(signal.SIGKILL)
        wait_for_steps(first, least_steps(first) + STEPS_AFTER)
        draw_top(master.http, Path(folder, "top.svg"))
        expect(first.locator("#event-list")).to_contain_text("is gone")
        for path, page in pages.items():
            page.bring_to_front()
            page.locator("#smoothing").fill("0.8")
            page.locator("#smoothing").blur()
            expect(page.locator(".chart canvas").first).to_be_visible()
            page.mouse.move(5, 5)
            page.screenshot(path=path)
        for path in (*pages, layers):
            Image.open(path).quantize(COLOURS).save(path, optimize=True)


def draw_top(http: str, path: Path) -> None:
    """Draw what `gradwire top` shows of a master."""
    master = MasterHttp(http)
    console = Console(record=True, width=TOP_COLUMNS, file=io.StringIO(), highlight=False)
    console.print(frame(read(master, None), master.url, TOP_COLUMNS, None))
    # Its fonts would come from another host.
    own = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    path.write_text(console.export_svg(title="gradwire top", code_format=own), encoding="utf-8")


LIVE_STEPS: Final = """() => {
    const steps = [...document.querySelectorAll('#roster tbody tr')]
        .filter(row => row.querySelector('.state')?.dataset.state === 'live')
        .map(row => Number(row.querySelector('td.step').textContent.replaceAll(',', '')));
    return steps.length ? Math.min(...steps) : 0;
}"""


def least_steps(page: Page) -> int:
    """Return how many steps the least advanced worker has made, as the page says."""
    return int(page.evaluate(LIVE_STEPS))


def wait_for_steps(page: Page, steps: int) -> None:
    """Wait until all workers have made so many steps."""
    page.wait_for_function(
        f"least => ({LIVE_STEPS})() >= least", arg=steps, timeout=WAIT_MILLISECONDS
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
