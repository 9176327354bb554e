"""A plugin of pytest: how long each test may take before it has hung, from `support.waiting`."""

from pathlib import Path
from typing import Final

import pytest

from support.waiting import TEST_SECONDS

TESTS: Final = Path(__file__).parents[1]


def seconds_of(path: Path) -> float | None:
    """Return how long a test of a file may take; None where its folder has no deadline."""
    for folder, seconds in TEST_SECONDS.items():
        if path.is_relative_to(TESTS / folder):
            return seconds
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the deadline of its folder."""
    for item in items:
        seconds = seconds_of(item.path)
        if seconds is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds))
