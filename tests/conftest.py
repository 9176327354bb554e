"""Profiles of hypothesis; what every test shares."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import support.device  # noqa: F401  # before anything else that a test imports imports Triton

# A red run in CI is then always a real change: it draws the same examples every time.
settings.register_profile(
    "ci",
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Take back what a command has made of logging, when a test calls it in this process."""
    root = logging.getLogger("gradwire")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
