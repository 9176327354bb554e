"""What is left of DDP or FSDP in a script that joins: its averaging is switched off, or refused."""

import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gradwire.errors import GradwireWarning, UsageError

if TYPE_CHECKING:
    import torch

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
    if torch is None:
        return
    wrapped = _wrappers(target.modules()) if isinstance(target, torch.nn.Module) else []
    for wrapper in wrapped:
        wrapper.require_backward_grad_sync = False
        wrapper.require_forward_param_sync = False
        # The first backward pass of such a graph would be prepared for averaging all the same.
        wrapper.static_graph = False
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


def check_whole(modules: Iterable[object], tensors: Iterable[object]) -> None:
    """Refuse what torch.distributed divides, and what it averages whatever we switch off.

    Parameters
    ----------
    modules, tensors : iterable
        All that a target consists of.

    Raises
    ------
    UsageError
        If a process has only a part of a parameter, or DDP averages by hooks of the parameters.
    """
    # Nothing is of a class that nobody has imported.
    fsdp, tensor = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    wrapper = getattr(fsdp, "FullyShardedDataParallel", ())
    modules = list(modules)
    if any(isinstance(each, wrapper) for each in modules) or any(
        isinstance(each, getattr(tensor, "DTensor", ())) for each in tensors
    ):
        raise UsageError(
            "the model is divided among processes, by FullyShardedDataParallel, fully_shard or "
            "DTensor, and every worker of a run needs it whole: join with the model as it was "
            "before, and do not divide it"
        )
    # A name of torch's own: no public one says it.
    if any(getattr(each, "_delay_all_reduce_params", ()) for each in _wrappers(modules)):
        raise UsageError(
            "the model is wrapped in DistributedDataParallel with delay_all_reduce_named_params, "
            "whose averaging cannot be switched off: pass the model itself, model.module, and do "
            "not wrap it"
        )


def _wrappers(modules: Iterable[object]) -> "list[torch.nn.parallel.DistributedDataParallel]":
    ddp = sys.modules["torch"].nn.parallel.DistributedDataParallel
    return [each for each in modules if isinstance(each, ddp)]
