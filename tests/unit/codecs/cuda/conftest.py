"""The device's kernels: on a GPU where there is one, else interpreted on tensors of the CPU."""

import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU:
    # Triton decides when a kernel is defined; nothing else in this process defines any.
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the vectors are."""
    return torch.device("cuda" if HAS_GPU else "cpu")
