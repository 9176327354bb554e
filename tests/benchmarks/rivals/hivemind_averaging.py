"""A rival that averages parameters now and then: hivemind's averager.

Each process has a node of hivemind's hash table, by which the averagers find each other; a group is
complete when all have come. Both run as processes beside it.

gradwire does not depend on hivemind: where it is not installed, `is_there` says so.
``pip install hivemind==1.1.12`` takes what it needs along.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from gradwire_udp.process import end_with_parent

EVERY: Final = 16
"""Steps from one averaging to the next, as in gradwire's mode ``averaging``."""
SMALL: Final = 1024
"""Elements. Tensors with fewer go as 16 bits: a codebook for 8 bits takes 1 KiB by itself."""
HOST: Final = "127.0.0.1"
WAIT_SECONDS_MAX: Final = 60.0
"""For each of the waits."""


def is_there() -> bool:
    """Return whether hivemind is installed."""
    return find_spec("hivemind") is not None


@contextmanager
def hivemind_averaging(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: str,
    begin: Callable[[], None],
    outcome: dict[str, Any],
) -> Iterator[tuple[nn.Module, Callable[[], None]]]:
    """Share a model among the processes of torch's default group.

    Parameters
    ----------
    model : nn.Module
        The same in all processes. Its parameters move to shared memory.
    optimizer : torch.optim.Optimizer
        Stays what it is: only parameters are averaged.
    run : str
        Name of the group.
    begin : callable
        Called when all is set up.
    outcome : dict
        Gets nothing.

    Yields
    ------
    nn.Module
        The model to train.
    callable
        What follows the optimizer's step. In the end the rest is averaged too.

    Raises
    ------
    TimeoutError
        Where hivemind takes longer than `WAIT_SECONDS_MAX` for something.
    """
    steps = 0
    with _averager(model, run) as averager:

        def average() -> None:
            control = averager.step(wait=False, timeout=WAIT_SECONDS_MAX)
            _within(f"hivemind's averaging after step {steps}", control.result)

        def step() -> None:
            nonlocal steps
            steps += 1
            if steps % EVERY == 0:
                average()

        begin()
        yield model, step
        if steps % EVERY:
            average()
        dist.barrier()  # the first node must not end before the last averaging


@contextmanager
def _averager(model: nn.Module, run: str) -> Iterator[Any]:
    """Make hivemind's averager of a model, beside a node of its hash table."""
    hivemind = import_module("hivemind")
    workers = dist.get_world_size()
    _end_children_with_us()
    with ExitStack() as stack:
        peers: list[list[str]] = [[]]
        if dist.get_rank() == 0:
            first = _node(hivemind, None, stack)
            found = first.run_coroutine(_addresses, return_future=True)
            peers[0] = _within("the address of hivemind's first node", found.result)
        dist.broadcast_object_list(peers)
        node = first if dist.get_rank() == 0 else _node(hivemind, peers[0], stack)
        averager = hivemind.DecentralizedAverager(
            [parameter.data for parameter in model.parameters()],
            node,
            start=False,
            prefix=run.replace(".", "-"),  # hivemind's keys have dots of their own
            target_group_size=workers,
            min_group_size=workers,  # with less, some average without the slow ones, which wait on
            compression=_compression(),
            allreduce_timeout=WAIT_SECONDS_MAX,
            allow_state_sharing=False,
        )
        averager.run_in_background(await_ready=False)
        stack.callback(averager.shutdown)
        _within("hivemind's averager", averager.wait_until_ready)
        yield averager


def _node(hivemind: Any, peers: list[str] | None, stack: ExitStack) -> Any:
    """Start a node of the hash table, without what finds a way through routers."""
    node = hivemind.DHT(
        peers,
        start=False,
        host_maddrs=[f"/ip4/{HOST}/tcp/0"],
        use_relay=False,
        nat_port_map=False,
        auto_nat=False,
    )
    node.run_in_background(await_ready=False)
    stack.callback(node.shutdown)
    _within("hivemind's hash table", node.wait_until_ready)
    return node


@cache
def _end_children_with_us() -> None:
    """Let hivemind's processes end where this one is killed: they hold its output open."""
    os.register_at_fork(after_in_child=lambda: end_with_parent(os.getppid(), signal.SIGKILL))


async def _addresses(_: Any, node: Any) -> list[str]:
    """Return where others find a node; called in its process, which answers within a deadline."""
    return [str(address) for address in await node.get_visible_maddrs()]


def _within(what: str, wait: Callable[..., Any]) -> Any:
    """Wait, but not for ever."""
    try:
        return wait(timeout=WAIT_SECONDS_MAX)
    except TimeoutError as error:
        message = f"{what} has not come within {WAIT_SECONDS_MAX:g} s"
        raise TimeoutError(message) from error


def _compression() -> Any:
    """Return what hivemind has for 8 bits, and for what is too small for its codebooks."""
    kinds = import_module("hivemind.compression")
    decoder: Any = import_module("hivemind.compression.quantization")
    # 1.1.12 takes an array with one element for a number, which numpy 2.4 refuses. hivemind decodes
    # in forks of this process, which inherit the change.
    decoder.int = lambda array: array.item()
    return kinds.SizeAdaptiveCompression(
        threshold=SMALL, less=kinds.Float16Compression(),
        greater_equal=kinds.Uniform8BitQuantization(),
    )  # fmt: skip
