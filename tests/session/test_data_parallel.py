"""What a script has left of torch.distributed: it is switched off, or named, or refused."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from support.local_master import LocalMaster
from support.tiers import variants
from support.wording import naming


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    """Have a process group of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def warning_of_join(target: object, master: LocalMaster) -> str:
    """Join and leave; return the one warning, which is at the line that joins."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradwire.join(target, master=master.address).close()
    [warning] = [each for each in caught if each.category is gradwire.GradwireWarning]
    assert warning.filename == __file__
    return str(warning.message)


WRAPPED: dict[str, Callable[[nn.Module], Any]] = {
    "ddp": DistributedDataParallel,
    # Its first backward pass ended with an internal error of torch.
    "static graph": lambda module: DistributedDataParallel(module, static_graph=True),
    "a part": lambda module: nn.Sequential(DistributedDataParallel(module)),
    "compiled": lambda module: torch.compile(DistributedDataParallel(module), backend="eager"),
}


@pytest.mark.parametrize("wrapped", variants(*WRAPPED))
def test_a_module_that_ddp_wraps_is_trained_by_its_own_gradients(
    wrapped: str, master: LocalMaster
) -> None:
    averaged: list[torch.Tensor] = []

    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        averaged.append(bucket.buffer())
        future = torch.futures.Future[torch.Tensor]()
        future.set_result(bucket.buffer())
        return future

    module = net()
    model = WRAPPED[wrapped](module)
    for each in model.modules():
        if isinstance(each, DistributedDataParallel):
            each.register_comm_hook(None, hook)

    said = warning_of_join(model, master)
    for _ in range(2):
        model(torch.ones(4, 2)).sum().backward()

    assert said == naming("DistributedDataParallel", "init_process_group", "join(model")
    assert not averaged
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize(
    "target_of", [lambda m: m, lambda m: list(m.parameters())], ids=["module", "list"]
)
def test_a_process_group_beside_a_session_is_named(
    target_of: Callable[[nn.Module], object], master: LocalMaster
) -> None:
    said = warning_of_join(target_of(net()), master)

    assert said == naming("torch.distributed", "init_process_group", "optimizer.step()")


def shards(module: nn.Module) -> list[nn.Parameter]:
    """Return this process's parts of its parameters."""
    fully_shard(module)
    return list(module.parameters())


def delayed(module: nn.Module) -> nn.Module:
    """Wrap it so that gradients are averaged by a hook, whatever the wrapper is told."""
    names = dict(module.named_parameters())
    return DistributedDataParallel(
        module,
        delay_all_reduce_named_params=[("1.bias", names["1.bias"])],
        param_to_hook_all_reduce=names["0.weight"],
    )


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of torch itself
@pytest.mark.parametrize(
    ("target_of", "said"),
    [
        (
            lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu")),
            ("FullyShardedDataParallel", "do not divide"),
        ),
        (fully_shard, ("fully_shard", "do not divide")),
        (shards, ("DTensor", "do not divide")),
        (delayed, ("delay_all_reduce_named_params", "model.module", "do not wrap")),
    ],
    ids=["FSDP", "fully_shard", "a list of DTensors", "delayed averaging"],
)
def test_what_cannot_be_shared_or_switched_off_is_refused(
    target_of: Callable[[nn.Module], object], said: tuple[str, ...]
) -> None:
    target = target_of(net())

    with pytest.raises(gradwire.UsageError) as raised:
        gradwire.join(target, master="127.0.0.1:1")

    assert str(raised.value) == naming(*said)
