"""What the tests with real processes share."""

import os

import pytest

from gradwire.settings.settings import TORCHRUN


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that a test starts see no settings but the test's."""
    for name in os.environ:
        if name.startswith("GRADWIRE_") or name in TORCHRUN.values():
            monkeypatch.delenv(name)
