"""A rival that synchronizes rarely: torchft's DiLoCo, as its documentation sets it up.

Each process is a replica group of its own, and rank 0 has the lighthouse too. Pseudogradients are
sent as 32 bits, parameter by parameter, over gloo: torchft quantizes on accelerators only.

gradwire does not depend on torchft: where it is not installed, `is_there` says so.
``pip install torchft==0.2.0`` takes what it needs along.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

EVERY: Final = 64
"""Steps from one synchronization to the next, as in gradwire's mode ``diloco``."""
OUTER: Final[Mapping[str, Any]] = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
"""Of the outer optimizer; the values of DiLoCo's paper."""
HOST: Final = "127.0.0.1"
WAIT_MAX: Final = timedelta(seconds=60)
"""For each of torchft's waits, whose errors name what they waited for."""


def is_there() -> bool:
    """Return whether torchft is installed."""
    return find_spec("torchft") is not None


@contextmanager
def torchft_diloco(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: str,
    begin: Callable[[], None],
    outcome: dict[str, Any],
    *,
    every: int = EVERY,
    host: str = HOST,
) -> Iterator[tuple[nn.Module, Callable[[], None]]]:
    """Share a model among the processes of torch's default group.

    Parameters
    ----------
    model : nn.Module
        The same in all processes.
    optimizer : torch.optim.Optimizer
        The inner one.
    run : str
        Prefix of the name that a replica has at the lighthouse.
    begin : callable
        Called when all is set up.
    outcome : dict
        Gets nothing: torchft has no figures of its own.
    every : int
        Steps from one synchronization to the next.
    host : str
        Address of the machine that this process runs on.

    Yields
    ------
    nn.Module
        The model to train.
    callable
        What follows the optimizer's step. In the end all have the mean of what they trained.

    Raises
    ------
    RuntimeError
        Where a synchronization fails; torchft would discard its steps and go on.
    """
    local_sgd = import_module("torchft.local_sgd")
    steps = 0

    def step() -> None:  # DiLoCo has hooks in the optimizer
        nonlocal steps
        steps += 1

    with _manager(f"{run} {dist.get_rank()}", host) as manager:
        outer = torch.optim.SGD(model.parameters(), **OUTER)
        with local_sgd.DiLoCo(manager, [model], optimizer, outer, sync_every=every):
            begin()
            yield model, step
        if steps % every:
            local_sgd.LocalSGD(manager, model, optimizer, sync_every=1).sync()
        dist.barrier()  # the lighthouse must not end before the last replica


@contextmanager
def _manager(replica: str, host: str) -> Iterator[Any]:
    """Make torchft's manager of this process, and the lighthouse where the rank is 0."""
    workers = dist.get_world_size()
    with ExitStack() as stack:
        address = [""]
        if dist.get_rank() == 0:
            servers = import_module("torchft.coordination")
            lighthouse = servers.LighthouseServer(bind=f"{host}:0", min_replicas=workers)
            stack.callback(lighthouse.shutdown)
            # It says the name of the machine, which a network namespace need not resolve.
            address[0] = f"http://{host}:{urlsplit(lighthouse.address()).port}"
        dist.broadcast_object_list(address)
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=WAIT_MAX)
        manager = import_module("torchft.manager").Manager(
            pg=import_module("torchft.process_group").ProcessGroupGloo(timeout=WAIT_MAX),
            load_state_dict=None,  # DiLoCo has functions of its own
            state_dict=None,
            min_replica_size=workers,
            use_async_quorum=False,
            timeout=WAIT_MAX,
            quorum_timeout=WAIT_MAX,
            connect_timeout=WAIT_MAX,
            rank=0,
            world_size=1,
            store_addr=host,
            store_port=store.port,
            lighthouse_addr=address[0],
            replica_id=replica,
            hostname=host,
            init_sync=False,  # all begin with the same model
            max_retries=0,
        )
        stack.callback(manager.shutdown, wait=False)
        yield manager
