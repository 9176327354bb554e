"""DDP and FSDP in a script that joins: their averaging is switched off, or refused."""

import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gradwire.errors import GradwireWarning, UsageError

if TYPE_CHECKING:
    import torch

AT_JOIN: Final = 3
"""A warning shows the line that calls `join`, which calls these functions."""


def stop_averaging(target: object) -> None:
    """Switch off the averaging of DistributedDataParallel around or inside of a target, and warn.

    A session shares the changes that each worker's own gradients make. If DDP averaged the
    gradients before, each would count once for each worker. The wrapper's `forward` can still be
    called: it works as inside of `DistributedDataParallel.no_sync`, and sends no buffers either.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    wrapped = _wrappers(target.modules()) if isinstance(target, torch.nn.Module) else []
    for wrapper in wrapped:
        wrapper.require_backward_grad_sync = False
        wrapper.require_forward_param_sync = False
        # DDP would prepare the first backward pass of a static graph for averaging all the same.
        wrapper.static_graph = False
    if wrapped:
        warnings.warn(
            "the model is wrapped in DistributedDataParallel: gradwire has switched off its "
            "averaging of gradients and its sending of buffers, which the session does. Remove the "
            "wrapper and init_process_group: join(model, optimizer=optimizer) is enough",
            GradwireWarning,
            stacklevel=AT_JOIN,
        )
    elif torch.distributed.is_available() and torch.distributed.is_initialized():
        warnings.warn(
            "torch.distributed is initialized in this process, and gradwire does not use it: "
            "remove init_process_group, unless this script needs a process group for something "
            "else. If it averages gradients before optimizer.step(), each counts once for each "
            "worker",
            GradwireWarning,
            stacklevel=AT_JOIN,
        )


def check_whole(modules: Iterable[object], tensors: Iterable[object]) -> None:
    """Refuse a target that torch.distributed divides, or whose averaging cannot be switched off.

    `UsageError` if a process has only a part of a parameter, or DDP averages by parameter hooks.
    """
    # Where a module is not imported, no object is of its classes.
    fsdp, tensor = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    wrapper = getattr(fsdp, "FullyShardedDataParallel", ())
    modules = list(modules)
    if any(isinstance(each, wrapper) for each in modules) or any(
        isinstance(each, getattr(tensor, "DTensor", ())) for each in tensors
    ):
        raise UsageError(
            "the model is divided among processes, by FullyShardedDataParallel, fully_shard or "
            "DTensor, and every worker of a run needs all of it: join with the whole model, and do "
            "not divide it"
        )
    # This name is private to torch; there is no public one.
    if any(getattr(each, "_delay_all_reduce_params", ()) for each in _wrappers(modules)):
        raise UsageError(
            "the model is wrapped in DistributedDataParallel with delay_all_reduce_named_params, "
            "whose averaging cannot be switched off: pass the model itself, model.module, and do "
            "not wrap it"
        )


def _wrappers(modules: Iterable[object]) -> "list[torch.nn.parallel.DistributedDataParallel]":
    ddp = sys.modules["torch"].nn.parallel.DistributedDataParallel
    return [each for each in modules if isinstance(each, ddp)]
