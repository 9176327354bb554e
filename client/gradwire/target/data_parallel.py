"""What is left of DDP in a script that joins: its averaging is switched off, and that is said."""

import sys
import warnings
from typing import Final

from gradwire.errors import GradwireWarning

AT_JOIN: Final = 3
"""The line that a warning shows is the one that calls `join`, which calls these functions."""


def stop_averaging(target: object) -> None:
    """Keep DistributedDataParallel around a target, or inside of it, from averaging; warn of it.

    A session shares what each worker's own gradients change. Averaged before that, they would be
    counted once for each worker. The wrapper's `forward` stays as good as the module's own: it
    goes on as inside of `DistributedDataParallel.no_sync`, and sends no buffers either.

    Parameters
    ----------
    target : object
        What `join` was given.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(target, torch.nn.Module):
        return
    wrapped = [
        m for m in target.modules() if isinstance(m, torch.nn.parallel.DistributedDataParallel)
    ]
    for wrapper in wrapped:
        wrapper.require_backward_grad_sync = False
        wrapper.require_forward_param_sync = False
    if wrapped:
        warnings.warn(
            "the model is wrapped in DistributedDataParallel: gradwire has switched off that it "
            "averages gradients and sends buffers, which is done by the session. Take the wrapper "
            "away, and init_process_group: join(model, optimizer=optimizer) is enough",
            GradwireWarning,
            stacklevel=AT_JOIN,
        )
    elif torch.distributed.is_available() and torch.distributed.is_initialized():
        warnings.warn(
            "torch.distributed is initialized in this process, and gradwire does not use it: "
            "init_process_group can go, unless this script needs a process group for something "
            "else. Gradients that are averaged before optimizer.step() would be counted once for "
            "each worker",
            GradwireWarning,
            stacklevel=AT_JOIN,
        )
