"""A browser for all tests of the page, and a page for each."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from support.browser import Watched, WatchedRun, browsing
from support.crowd import CrowdedRun


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run a browser."""
    with browsing() as running:
        yield running


@pytest.fixture
def watch(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Return a function that gives a page of its own to a run; at the end, nothing is wrong."""
    pages: list[Watched] = []

    def opened(run: WatchedRun | CrowdedRun, *, width: int = 1400, theme: str = "light") -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,  # type: ignore[arg-type]
        )
        run.stack.callback(context.close)
        pages.append(Watched(context.new_page(), run.url))
        return pages[-1]

    yield opened
    for watched in pages:
        assert watched.complaints == []
