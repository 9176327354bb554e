"""Fixtures of every test of the client, those with a master and those without."""

import os
from collections.abc import Iterator

import pytest
import torch

from gradwire.settings.launchers import TORCHRUN


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test see no settings but its own."""
    for name in os.environ:
        if name.startswith("GRADWIRE_") or name in TORCHRUN.values():
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep torch from spreading tiny work over threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
