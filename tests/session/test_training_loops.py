"""Each kind of training loop: two workers train, learn, and end with the same bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations

from gradwire.errors import UsageError
from support.local_master import LocalMaster
from support.sessions import delivered, join
from support.tiers import variants
from support.training_loops import (
    INPUTS,
    TrainingWorker,
    adam,
    compiled_and_run,
    mlp,
    train,
    two_workers,
)
from support.waiting import wait_until
from support.wording import naming

SMALL = 2.0**-14
"""A threshold of which an element sends 127 in a step, and of which most steps change more: so each
one leaves plenty that the next ones could send."""


def deeper() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )


# Which parameters are trained.


def test_frozen_parameters_never_change_and_can_be_unfrozen(master: LocalMaster) -> None:
    def half_frozen() -> nn.Sequential:
        module = mlp()
        module[0].requires_grad_(False)
        return module

    with two_workers(master, half_frozen) as workers:
        frozen = [worker.values()[:2] for worker in workers]
        optimizers = [adam(worker) for worker in workers]

        train(workers, optimizers, 30)
        after = [worker.values() for worker in workers]
        for worker in workers:
            worker.module[0].requires_grad_(True)  # type: ignore[index]
        train(workers, optimizers, 60)

    assert [values[:2] for values in after] == frozen
    assert all(worker.values()[:2] != frozen[0] for worker in workers)


def test_parameters_that_only_one_worker_freezes_are_trained_by_the_other(
    master: LocalMaster,
) -> None:
    with two_workers(master, mlp, at_most=0.6) as workers:
        workers[0].module[0].requires_grad_(False)  # type: ignore[index]
        before = workers[0].values()[0]
        train(workers, [adam(worker) for worker in workers], 60)

    assert workers[0].values()[0] != before


class TiedByAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inwards = nn.Linear(INPUTS, 16, bias=False)
        self.outwards = nn.Linear(INPUTS, 16, bias=False)
        self.last = nn.Linear(INPUTS, 1)
        self.tie()

    def tie(self) -> None:
        self.outwards.weight = self.inwards.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inwards(inputs).tanh()
        computed: torch.Tensor = self.last(inputs + hidden @ self.outwards.weight)
        return computed


class TiedByMemory(TiedByAttribute):
    def tie(self) -> None:
        self.outwards.weight.data = self.inwards.weight.data


@pytest.mark.parametrize("make", variants(TiedByAttribute, TiedByMemory))
def test_tied_weights_stay_tied(make: type[TiedByAttribute], master: LocalMaster) -> None:
    with two_workers(master, make, at_most=0.8) as workers:
        train(workers, [adam(worker) for worker in workers], 60)

        for worker in workers:
            module = worker.module
            assert isinstance(module, TiedByAttribute)
            assert module.inwards.weight.data_ptr() == module.outwards.weight.data_ptr()
            assert torch.equal(module.inwards.weight, module.outwards.weight)


def test_parameter_groups_keep_their_own_rates_and_new_ones_can_be_added(
    master: LocalMaster,
) -> None:
    with two_workers(master, deeper) as workers:
        optimizers = []
        for worker in workers:
            first, _, second, _, _ = worker.module.children()
            groups = [
                {"params": first.parameters(), "lr": 0.1},
                {"params": second.parameters(), "lr": 0.0, "weight_decay": 0.1},
            ]
            optimizers.append(torch.optim.SGD(groups, lr=0.01))
        before = [worker.values() for worker in workers]

        train(workers, optimizers, 20)
        after = [worker.values() for worker in workers]
        for worker, optimizer in zip(workers, optimizers, strict=True):
            last = list(worker.module.children())[-1]
            optimizer.add_param_group({"params": last.parameters(), "lr": 0.05})
            optimizer.param_groups[1]["lr"] = 0.05
        train(workers, optimizers, 80)

    for values, values_before in zip(after, before, strict=True):
        assert values[0] != values_before[0]
        assert values[2:] == values_before[2:]  # at rate 0, and in no group


# Gradients.


class Bags(nn.Module):
    """The signs of the inputs name the rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(2 * INPUTS, 8, mode="sum", sparse=True)
        self.last = nn.Linear(8 + INPUTS, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = (inputs > 0).long() + 2 * torch.arange(INPUTS)
        computed: torch.Tensor = self.last(torch.cat([self.bag(rows), inputs], 1))
        return computed


@pytest.mark.parametrize("kind", variants("SparseAdam", "SGD"))
def test_sparse_gradients_of_an_embedding_bag(kind: str, master: LocalMaster) -> None:
    with two_workers(master, Bags) as workers:
        for _ in range(80):
            for worker in workers:
                bag, last = worker.module.children()
                of_table = (torch.optim.SparseAdam if kind == "SparseAdam" else torch.optim.SGD)(
                    bag.parameters(), lr=0.01
                )
                of_rest = torch.optim.SGD(last.parameters(), lr=0.02)
                worker.module.zero_grad()
                worker.loss().backward()
                assert next(bag.parameters()).grad.is_sparse  # type: ignore[union-attr]
                of_table.step()  # type: ignore[no-untyped-call]
                of_rest.step()
                worker.share()


@pytest.mark.parametrize("every_batch", variants(True, False))
def test_gradient_accumulation_sends_only_what_the_optimizer_s_steps_changed(
    every_batch: bool, master: LocalMaster
) -> None:
    with two_workers(master, mlp, threshold=SMALL) as workers:
        optimizers = [torch.optim.SGD(w.module.parameters(), lr=0.05) for w in workers]
        for i in range(240):
            for worker, optimizer in zip(workers, optimizers, strict=True):
                (worker.loss() / 4).backward()
                sent = worker.updates_sent
                if i % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
                if every_batch or i % 4 == 3:
                    worker.share()
                assert worker.updates_sent == sent + (i % 4 == 3)


@pytest.mark.parametrize("clip", variants(clip_grad_norm_, clip_grad_value_))
def test_gradient_clipping(clip: Callable[..., object], master: LocalMaster) -> None:
    with two_workers(master, mlp) as workers:
        optimizers = [torch.optim.SGD(w.module.parameters(), lr=0.05) for w in workers]
        for _ in range(90):
            for worker, optimizer in zip(workers, optimizers, strict=True):
                optimizer.zero_grad()
                (1e6 * worker.loss()).backward()
                clip(worker.module.parameters(), 0.5)
                optimizer.step()
                worker.share()


# Precision.


def test_a_step_that_a_grad_scaler_skips_sends_nothing(master: LocalMaster) -> None:
    with two_workers(master, mlp, threshold=SMALL) as workers:
        optimizers = [torch.optim.SGD(w.module.parameters(), lr=0.05) for w in workers]
        scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in workers]
        for i in range(60):
            for worker, optimizer, scaler in zip(workers, optimizers, scalers, strict=True):
                overflows = i % 10 == 9
                sent, values = worker.updates_sent, worker.values()
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = worker.loss()
                scaler.scale(loss * float("inf") if overflows else loss).backward()
                scaler.unscale_(optimizer)
                clip_grad_norm_(worker.module.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                assert (worker.values() == values) is overflows

                worker.session.push()

                assert worker.updates_sent == sent + (not overflows)
                worker.session.pull()
                delivered(worker.session, worker.updates_sent)
        assert all(scaler.get_scale() < 1024.0 for scaler in scalers)


@pytest.mark.parametrize("dtype", variants(torch.bfloat16, torch.float64))
def test_modules_of_another_precision(dtype: torch.dtype, master: LocalMaster) -> None:
    with two_workers(master, lambda: mlp().to(dtype)) as workers:
        train(workers, [torch.optim.SGD(w.module.parameters(), lr=0.05) for w in workers], 75)

        assert {p.dtype for w in workers for p in w.module.parameters()} == {dtype}


# Optimizers.


def closure(worker: TrainingWorker) -> float:
    worker.module.zero_grad()
    loss: Any = nn.functional.mse_loss(worker.module(worker.inputs), worker.outputs)
    loss.backward()
    return float(loss.item())


def has_all_of(worker: TrainingWorker, other: TrainingWorker) -> bool:
    worker.session.pull()
    return worker.session.stats.updates_applied >= other.updates_sent


@pytest.mark.parametrize("line_search", variants(None, "strong_wolfe"))
def test_lbfgs_with_a_closure(line_search: str | None, master: LocalMaster) -> None:
    with two_workers(master, mlp) as workers:
        optimizers = [
            torch.optim.LBFGS(w.module.parameters(), lr=0.1, max_iter=4, line_search_fn=line_search)
            for w in workers
        ]
        for _ in range(20):
            for worker, other, optimizer in zip(workers, workers[::-1], optimizers, strict=True):
                optimizer.step(partial(closure, worker))  # type: ignore[no-untyped-call]
                worker.session.step()
                # In turns: it takes what comes in the middle of its steps for curvature.
                wait_until(partial(has_all_of, other, worker), "an update of the other worker")


def test_fused_optimizers(master: LocalMaster) -> None:
    """Torch counts no change of theirs, not even where something else was counted before."""
    with two_workers(master, mlp) as workers:
        for worker in workers:
            with torch.no_grad():
                next(worker.module.parameters()).add_(0.0)
        optimizers = [
            torch.optim.Adam(w.module.parameters(), lr=0.01, betas=(0.0, 0.99), fused=True)
            for w in workers
        ]
        train(workers, optimizers, 80)

        for worker in workers:
            assert worker.updates_sent > 60


def test_loops_that_change_data_by_hand(master: LocalMaster) -> None:
    with two_workers(master, mlp) as workers:
        for _ in range(80):
            for worker in workers:
                worker.module.zero_grad()
                worker.loss().backward()
                for parameter in worker.module.parameters():
                    assert parameter.grad is not None
                    parameter.data.sub_(parameter.grad, alpha=0.05)
                worker.share()


# Modules.


@pytest.mark.parametrize("joins_with", variants("compiled", "module"))
@pytest.mark.parametrize("backend", variants("eager", "aot_eager"))
def test_compiled_modules_train_together_with_others(
    backend: str, joins_with: str, master: LocalMaster
) -> None:
    """Compiled before joining; one joins with what it compiled, or with the module in it."""
    compiled: list[nn.Module] = []

    def target_of(module: nn.Module) -> object:
        torch.compiler.reset()
        compiled.append(compiled_and_run(module, backend))
        return compiled[0] if joins_with == "compiled" and len(compiled) == 1 else module

    with two_workers(master, mlp, target_of=target_of) as workers:
        optimizers = [adam(worker) for worker in workers]
        for worker, wrapper in zip(workers, compiled, strict=True):
            worker.module = wrapper
        train(workers, optimizers, 60)


def test_modules_and_parts_of_them_can_be_compiled_after_joining(master: LocalMaster) -> None:
    torch.compiler.reset()
    with two_workers(master, mlp) as workers:
        optimizers = [adam(worker) for worker in workers]
        train(workers, optimizers, 5)
        workers[0].module = compiled_and_run(workers[0].module, "aot_eager")
        part = torch.compile(next(workers[1].module.children()), backend="eager")
        setattr(workers[1].module, "0", part)
        train(workers, optimizers, 60)


def test_a_data_parallel_wrapper_joins_with_others(master: LocalMaster) -> None:
    made: list[nn.Module] = []

    def target_of(module: nn.Module) -> object:
        made.append(module)
        return nn.DataParallel(module) if len(made) == 1 else module

    with two_workers(master, mlp, target_of=target_of) as workers:
        train(workers, [adam(worker) for worker in workers], 60)


def test_lazy_modules_after_they_ran_once(master: LocalMaster) -> None:
    def lazy() -> nn.Sequential:
        module = nn.Sequential(nn.LazyLinear(32), nn.Tanh(), nn.LazyLinear(1))
        module(torch.zeros(1, INPUTS))
        return module

    with two_workers(master, lazy) as workers:
        train(workers, [adam(worker) for worker in workers], 60)


@pytest.mark.parametrize(
    "norm", variants(parametrizations.weight_norm, parametrizations.spectral_norm)
)
def test_parametrizations_that_were_there_before(
    norm: Callable[[nn.Module], nn.Module], master: LocalMaster
) -> None:
    def normalized() -> nn.Sequential:
        module = mlp()
        norm(module[0])
        return module

    with two_workers(master, normalized, at_most=0.7) as workers:
        for worker in workers:
            worker.module.eval()  # or the spectral norm's buffers, which are not shared, change
        train(workers, [adam(worker) for worker in workers], 50)


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a parameter": (
        lambda m: m.register_parameter("scale", nn.Parameter(torch.ones(1))),
        "parameter 'scale' was added",
    ),
    "a submodule": (
        lambda m: m.append(nn.Linear(1, 1)),
        "parameter '3.weight' was added",
    ),
    "in a list": (
        lambda m: m[1].list.append(nn.Parameter(torch.ones(1))),
        "parameter '1.list.1' was added",
    ),
    "a parametrization": (
        lambda m: parametrizations.weight_norm(m[0]),
        "parameter '0.parametrizations.weight.original0' was added",
    ),
    "removed": (
        lambda m: m[2].register_parameter("bias", None),
        "parameter '2.bias' was removed",
    ),
    "deleted": (
        lambda m: m.__delitem__(2),
        "parameter '2.weight' was removed",
    ),
    "untied": (
        lambda m: setattr(m[1].again, "weight", nn.Parameter(torch.zeros(4, 4))),
        "the parameters '1.once.weight', '1.again.weight' were one when the session began",
    ),
    "tied": (
        lambda m: setattr(m[1].once, "bias", m[1].again.bias),
        "the parameters '1.once.bias' and '1.again.bias' have become one",
    ),
}


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.list = nn.ParameterList([torch.ones(1)])
        self.once, self.again = nn.Linear(4, 4), nn.Linear(4, 4)
        self.again.weight = self.once.weight


@pytest.mark.parametrize(("make_change", "says"), CHANGES.values(), ids=CHANGES.keys())
def test_parameters_that_come_or_go_later_are_refused_by_name(
    make_change: Callable[[Any], object], says: str, master: LocalMaster
) -> None:
    module = nn.Sequential(nn.Linear(2, 4), Inner(), nn.Linear(4, 1))
    session = join(master, module)
    session.step()

    make_change(module)

    for _ in range(2):
        with pytest.raises(UsageError) as refused:
            session.step()
        assert str(refused.value).startswith(says)


def test_a_parameter_that_was_added_and_removed_again_is_forgotten(master: LocalMaster) -> None:
    module = mlp()
    session = join(master, module)
    module.extra = nn.Linear(1, 1)
    with pytest.raises(UsageError, match=naming("extra.weight", "added", "join()")):
        session.step()

    del module.extra
    session.step()


def test_a_layer_that_is_replaced_by_one_of_the_same_shape_is_trained_from_then_on(
    master: LocalMaster,
) -> None:
    with two_workers(master, mlp) as workers:
        optimizers = [adam(worker) for worker in workers]
        train(workers, optimizers, 5)
        for worker in workers:
            setattr(worker.module, "2", nn.Linear(32, 1))
        optimizers = [adam(worker) for worker in workers]
        train(workers, optimizers, 50)


def test_who_joins_with_a_list_may_add_what_is_not_shared(master: LocalMaster) -> None:
    module = mlp()
    session = join(master, list(module.parameters()))

    module.extra = nn.Linear(1, 1)
    session.step()
