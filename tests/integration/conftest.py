"""What the tests with real processes share."""

import os

import pytest

from gradwire.settings.launchers import TORCHRUN
from support.waiting import PROCESS


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that a test starts see no settings but the test's."""
    for name in os.environ:
        if name.startswith("GRADWIRE_") or name in TORCHRUN.values():
            monkeypatch.delenv(name)
    # Nor one that a busy machine would miss.
    monkeypatch.setenv("GRADWIRE_CONNECT_TIMEOUT_SECONDS", str(PROCESS))
