"""What every test shares."""

import logging
from collections.abc import Iterator

import pytest

pytest_plugins = [
    "support.dispositions",
    "support.leavings",
    "support.tier_plugin",
    "support.parallel_plugin",
    "support.again_plugin",
    "support.timeouts",
]


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Take back what a command has made of logging, when a test calls it in this process."""
    root = logging.getLogger("gradwire")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
