"""The pictures of the master's page: of a real run, of which one worker is killed.

``make pictures`` draws them again.
"""

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect

from support.browser import WAIT_MILLISECONDS, browsing
from support.local_master import MasterProcess
from support.processes import Running

SCRIPT: Final = Path(__file__).parents[2] / "docs" / "examples" / "train.py"

WORKERS: Final = 4

STEPS: Final = (400, 1_400)
"""Of the least advanced worker: before one is killed, and at the picture."""

SIZES: Final = {"wide": (1400, 1260), "narrow": (400, 860)}
"""Width and height in pixels."""

ARE_FAR_ENOUGH: Final = """least => {
    const cells = [...document.querySelectorAll('#roster tbody tr')]
        .filter(row => row.querySelector('[data-state="live"]'))
        .map(row => Number(row.children[4].textContent.replaceAll(',', '')));
    return cells.length > 0 && Math.min(...cells) >= least;
}"""


def main(folder: str) -> None:
    """Draw all pictures into a folder."""
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--idle-timeout-seconds", "8"))
        settings = f"GRADWIRE_MASTER={master.address}", "OMP_NUM_THREADS=1"
        command = [sys.executable, str(SCRIPT), "--steps", "100000", "--workers", str(WORKERS)]
        workers = [
            stack.enter_context(Running(["env", *settings, *command])) for _ in range(WORKERS)
        ]
        browser = stack.enter_context(browsing())
        pages: dict[str, Page] = {}
        for size, (width, height) in SIZES.items():
            for theme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                )
                page = pages[f"page-{size}-{theme}.png"] = context.new_page()
                page.set_default_timeout(WAIT_MILLISECONDS)
                page.goto(f"http://{master.http}/")
        first = next(iter(pages.values()))
        first.wait_for_function(ARE_FAR_ENOUGH, arg=STEPS[0], timeout=300_000)
        workers[-1].send_signal(signal.SIGKILL)
        expect(first.locator("#event-list")).to_contain_text("is gone", timeout=60_000)
        first.wait_for_function(ARE_FAR_ENOUGH, arg=STEPS[1], timeout=300_000)
        for name, page in pages.items():
            page.bring_to_front()
            page.get_by_label("smoothing").fill("0.8")
            page.get_by_label("smoothing").blur()
            expect(page.locator(".chart canvas").first).to_be_visible()
            page.screenshot(path=Path(folder, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
