"""What DistributedDataParallel's communication hooks give to the network.

Counted is what one process hands to all-reduce per step; a ring all-reduce sends nearly twice that.
The real hooks of torch 2.13 came to the same counts, with tensors of GPT-2 and of the demo.
"""

from collections.abc import Sequence
from math import prod
from typing import Final, TypeAlias

Shapes: TypeAlias = Sequence[tuple[int, ...]]

FIRST_COMPRESSED_STEP: Final = 2
"""PowerSGD sends everything before; its default is 1000, and what is counted here comes after."""

BUCKET_MEGABYTES: Final = 4096
"""One bucket for everything. PowerSGD's hook waits for all-reduce on the threads that gloo would
run it on, of which there are two, so with more buckets it sometimes waits for ever."""


def fp16_bytes(shapes: Shapes) -> int:
    """Return the bytes of a step with ``fp16_compress_hook``."""
    return 2 * sum(map(prod, shapes))


def power_sgd_bytes(shapes: Shapes, rank: int) -> int:
    """Return the bytes of a step with ``powerSGD_hook``: two thin matrices of each matrix.

    Tensors of which these would save less than half, vectors among them, it sends as they are.

    References
    ----------
    .. [1] T. Vogels et al., "PowerSGD: Practical low-rank gradient compression for distributed
       optimization", NeurIPS 2019.
    """
    sent = 0
    for shape in shapes:
        elements, rows = prod(shape), shape[0]
        thin = (rows + elements // rows) * rank
        sent += thin if len(shape) > 1 and 2 * thin < elements else elements
    return 4 * sent
