from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from benchmarks.rivals.ddp_hooks import fp16_bytes, power_sgd_bytes, train

SHAPES = ((64, 32), (32,), (48, 8, 2))
ELEMENTS = 64 * 32 + 32 + 48 * 8 * 2


def test_the_fp16_hook_sends_halves() -> None:
    hook: Any = default_hooks.fp16_compress_hook

    gradients = train(SHAPES, hook, None, steps=1)

    assert fp16_bytes(SHAPES) == 2 * ELEMENTS
    assert len(gradients) == len(SHAPES)
    for gradient in gradients:
        assert torch.equal(gradient, gradient.to(torch.float16).to(torch.float32))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_powersgd_hook_sends_two_thin_matrices_of_each_matrix(rank: int) -> None:
    matrices = (64 + 32) * rank + (48 + 16) * rank

    assert power_sgd_bytes(SHAPES, rank) == 4 * (matrices + 32)


def test_the_powersgd_hook_sends_a_matrix_as_it_is_where_thin_ones_are_no_smaller() -> None:
    assert power_sgd_bytes(((8, 8), (8,)), rank=4) == 4 * (8 * 8 + 8)
