"""Where the codec's kernels run in tests: on a GPU, or interpreted on tensors of the CPU.

Triton decides when a kernel is defined, its own library's at import; some other packages import
it. So conftest.py imports this before any test module, in the deep tier: the quick one runs no such
kernel.
"""

import os

import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
