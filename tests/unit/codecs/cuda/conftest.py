"""What the tests of the device's kernels share."""

import pytest
import torch

from support.device import DEVICE

pytest.importorskip("triton")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the vectors are."""
    return DEVICE
