"""What DistributedDataParallel's communication hooks give to the network, by the real hooks.

A process group of one process trains a model of given tensors with them. Counted is what one
process hands to all-reduce per step; a ring all-reduce sends nearly twice that.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

Shapes: TypeAlias = Sequence[tuple[int, ...]]
Hook: TypeAlias = Callable[[Any, Any], torch.futures.Future[Tensor]]

FIRST_COMPRESSED_STEP: Final = 2
"""PowerSGD sends everything before; its default is 1000, and what is counted here comes after."""


BUCKET_MEGABYTES: Final = 4096
"""One bucket for everything. PowerSGD's hook waits for all-reduce on the threads that gloo would
run it on, of which there are two, so with more buckets it sometimes waits for ever."""

_groups: Final[list[Any]] = []
"""Every group there was. PowerSGD's callbacks hold theirs, and run on its threads. A thread that
lets go of the last reference ends the group, waits for itself, and aborts the process."""


class _Tensors(nn.Module):
    """A model with these tensors, whose gradients are other random ones."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)
        self._gradients = [torch.randn(shape) for shape in shapes]

    def forward(self, scale: Tensor) -> Tensor:
        """Return something whose gradient is `scale` times the random tensors."""
        pairs = zip(self.tensors, self._gradients, strict=True)
        return torch.stack([(tensor * gradient).sum() for tensor, gradient in pairs]).sum() * scale


@contextmanager
def _alone() -> Iterator[None]:
    """Be the only process of a group."""
    with TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
        _groups.append(dist.group.WORLD)
        try:
            yield
        finally:
            dist.destroy_process_group()


def train(shapes: Shapes, hook: Hook, state: Any, steps: int) -> list[Tensor]:
    """Make steps with a hook; return the gradients of the last one."""
    with _alone():
        model = _Tensors(shapes)
        parallel = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MEGABYTES)
        parallel.register_comm_hook(state, hook)
        for _ in range(steps):
            model.zero_grad()
            parallel(torch.ones(())).backward()
        return [tensor.grad for tensor in model.tensors if tensor.grad is not None]


def fp16_bytes(shapes: Shapes) -> int:
    """Return the bytes of a step with ``fp16_compress_hook``."""
    sent = 0

    # DDP looks at the annotation, and torch's types have no such name.
    def counting(
        state: Any,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        nonlocal sent
        sent += torch.float16.itemsize * bucket.buffer().numel()
        return default_hooks.fp16_compress_hook(state, bucket)

    train(shapes, counting, None, steps=1)
    return sent


def power_sgd_bytes(shapes: Shapes, rank: int) -> int:
    """Return the bytes of a step with ``powerSGD_hook``, by the hook's own count.

    Tensors of which it would save less than half, vectors among them, it sends as they are.

    References
    ----------
    .. [1] T. Vogels et al., "PowerSGD: Practical low-rank gradient compression for distributed
       optimization", NeurIPS 2019.
    """
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=FIRST_COMPRESSED_STEP,
    )
    train(shapes, powerSGD_hook.powerSGD_hook, state, steps=FIRST_COMPRESSED_STEP + 1)
    elements = sum(map(prod, shapes))
    steps: int = state.total_numel_before_compression // elements
    compressed: int = state.total_numel_after_compression
    return torch.float32.itemsize * compressed // steps
