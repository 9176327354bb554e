"""DistributedDataParallel with one of the hooks that send less."""

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.rivals.ddp_hooks import BUCKET_MEGABYTES, FIRST_COMPRESSED_STEP
from benchmarks.slowlink_methods import FP16, POWER_SGD


def data_parallel(model: nn.Module, method: str) -> nn.Module:
    """Return a model as the processes of torch's default group train it, with a method's hook."""
    wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MEGABYTES)
    if method == FP16:
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method in POWER_SGD:
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=POWER_SGD[method],
            start_powerSGD_iter=FIRST_COMPRESSED_STEP,
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped
