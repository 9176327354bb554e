"""The callback for Lightning: real Trainers, each with a master of the test's own."""

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import gradwire
from gradwire import UsageError
from gradwire.integrations import hosted_session
from support.curves import logged_by
from support.local_master import LocalMaster
from support.optimizers import hooks_of
from support.sessions import HALF, delivered, join
from support.waiting import PROCESS, wait_until
from support.wording import naming

pytest.importorskip("lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # only if it is there
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision

from gradwire.integrations.lightning import GradwireCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
]

BATCHES = 6


class Module(LightningModule):
    """Four weights; every batch lowers them by itself, as plain SGD with a rate of 1 does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return (self.weight * batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class ByHand(Module):
    """Two optimizers, of which one steps in every second batch and one in every third."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Parameter(torch.zeros(4))

    def training_step(self, batch: torch.Tensor, index: int) -> None:  # type: ignore[override]
        for optimizer, weight, every in zip(
            self.optimizers(), (self.weight, self.other), (2, 3), strict=True
        ):
            if index % every == 0:
                optimizer.zero_grad()
                self.manual_backward((weight * batch[0]).sum())
                optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # type: ignore[override]
        return [torch.optim.SGD([weight], lr=1.0) for weight in (self.weight, self.other)]


def batches(value: float = -1.0) -> DataLoader[torch.Tensor]:
    return DataLoader(list(torch.full((BATCHES, 4), value)))  # type: ignore[arg-type]


def callback(master: LocalMaster, **options: Any) -> GradwireCallback:
    usual = {
        "master": master.address,
        "threshold": HALF,
        "finish_residual": "send",
        "scale": "sum",
        "staleness_bound": "off",
    }
    return GradwireCallback(**{**usual, **options})


def trainer(*callbacks: Any, **options: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 1,
            "callbacks": list(callbacks),
            **quiet,
            **options,
        }
    )


def steps_of(shared: GradwireCallback) -> int:
    assert shared.session is not None
    return shared.session.stats.steps


def test_it_joins_with_the_optimizer_steps_and_finishes(
    master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, module = callback(master), Module()
    seen: list[object] = []
    note_optimizers(monkeypatch, seen)

    trainer(shared).fit(module, batches())

    assert shared.session is not None
    assert [type(optimizer) for optimizer in seen] == [torch.optim.SGD]
    assert steps_of(shared) == BATCHES
    assert shared.session.stats.updates_sent == BATCHES
    assert module.weight.tolist() == [BATCHES] * 4
    with pytest.raises(UsageError, match="this session is over \\(finished\\)"):
        shared.session.step()
    master.wait_for_workers(0)


def note_optimizers(monkeypatch: pytest.MonkeyPatch, seen: list[object]) -> None:
    """Note what `join` is given for an optimizer."""
    real = gradwire.join

    def noting(target: object, *, optimizer: object, **settings: Any) -> Any:
        seen.append(optimizer)
        return real(target, optimizer=optimizer, **settings)

    monkeypatch.setattr(hosted_session, "join", noting)


def test_gradients_that_accumulate_are_one_step(master: LocalMaster) -> None:
    shared, module = callback(master), Module()

    trainer(shared, accumulate_grad_batches=3).fit(module, batches())

    assert steps_of(shared) == BATCHES / 3


def test_a_module_that_steps_by_hand_is_shared_when_any_optimizer_has_stepped(
    master: LocalMaster,
) -> None:
    shared, module = callback(master), ByHand()

    trainer(shared).fit(module, batches())

    assert steps_of(shared) == len({i for i in range(BATCHES) if i % 2 == 0 or i % 3 == 0})
    assert (module.weight[0].item(), module.other[0].item()) == (3.0, 2.0)


def test_a_step_that_a_scaler_skips_is_none(master: LocalMaster) -> None:
    shared, module = callback(master), Module()
    precision = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1))
    values = torch.full((BATCHES, 4), -1.0)
    values[2] = torch.inf

    trainer(shared, plugins=[precision]).fit(module, DataLoader(list(values)))  # type: ignore[arg-type]

    assert steps_of(shared) == BATCHES - 1
    assert module.weight.tolist() == [BATCHES - 1] * 4


def test_nothing_is_applied_during_a_validation(master: LocalMaster) -> None:
    peer_target = Module()
    peer = join(master, peer_target)
    shared = callback(master)
    during: list[float] = []

    class Validated(Module):
        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            if shared.session is not None and index == 0:  # not in the sanity check
                peer.push(torch.full((4,), 8.0))
                delivered(peer, peer.stats.updates_sent)
                assert shared.session.pull() == []
            during.append(self.weight[0].item())

    class Applied(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            session = shared.session
            while session is not None and not session.stats.updates_applied:
                session.pull()
            if session is not None:
                peer.close()

    module = Validated()
    trainer(shared, Applied()).fit(module, batches(), batches())

    assert set(during[2:]) == {float(BATCHES)}, "after all six batches, and before the peer's eight"
    assert module.weight[0].item() == BATCHES + 8


def test_an_exception_leaves_at_once(master: LocalMaster) -> None:
    class Failing(Module):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            if index == 3:
                raise ZeroDivisionError("as planned")
            return super().training_step(batch, index)

    shared, module = callback(master), Failing()

    with pytest.raises(ZeroDivisionError):
        trainer(shared).fit(module, batches())

    assert shared.session is not None
    with pytest.raises(UsageError, match="this session is over \\(ZeroDivisionError: as planned"):
        shared.session.step()
    assert steps_of(shared) == 3
    master.wait_for_workers(0)
    for optimizer in module.trainer.optimizers:
        assert not hooks_of(optimizer)["after a step"]


@pytest.mark.parametrize("first", [True, False])
def test_a_training_that_is_stopped_early_stops_everywhere(
    master: LocalMaster, first: bool
) -> None:
    """By a callback at one worker, or by the word of another worker."""
    peer = join(master, Module())
    shared = callback(master)

    class Stopping(Callback):
        def on_train_batch_end(self, trainer: Any, *more: Any) -> None:
            if shared.session is not None and steps_of(shared) == 2:
                if first:
                    trainer.should_stop = True
                else:
                    peer.stop_training("it is enough")
                    wait_until(lambda: shared.session.stopping is not None, "it to be heard")  # type: ignore[union-attr]

    with ThreadPoolExecutor(1) as pool:
        fitting = pool.submit(trainer(shared, Stopping(), max_epochs=3).fit, Module(), batches())
        wait_until(lambda: peer.stopping is not None, "the other worker to hear of it")
        peer.finish()
        fitting.result(PROCESS)

    assert steps_of(shared) in (2, 3)
    assert peer.stopping == naming("steps" if first else "it is enough")


def test_strategies_that_synchronise_processes_are_refused() -> None:
    ddp = trainer(devices=2, strategy="ddp")

    with pytest.raises(UsageError, match="DDPStrategy with 2 processes: gradwire takes the place"):
        GradwireCallback().setup(ddp, Module(), "fit")


def test_an_optimizer_that_does_not_tell_is_refused(master: LocalMaster) -> None:
    class Mute:
        """What Lightning takes for an optimizer."""

        param_groups: tuple[()] = ()
        state: Mapping[str, Any] = {}
        defaults: Mapping[str, Any] = {}

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

        def step(self, closure: Any = None) -> None:
            pass

    class Muted(Module):
        def configure_optimizers(self) -> Any:
            return Mute()

    with pytest.raises(UsageError, match=r"Mute is no torch\.optim\.Optimizer"):
        trainer(callback(master)).fit(Muted(), batches())


def test_a_checkpoint_has_the_residual_and_the_next_training_goes_on_from_it(
    master: LocalMaster, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"

    class Saving(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(path)

    with LocalMaster() as first:
        trainer(callback(first), Saving()).fit(Module(), batches(-0.0625))
    saved = torch.load(path, weights_only=True)
    state = saved["callbacks"]["GradwireCallback"]
    assert state["residual"].tolist() == [0.375] * 4

    shared, module = callback(master), Module()
    peer = join(master, Module())
    again = trainer(shared, Leaving(shared, peer), max_epochs=2)
    again.fit(module, batches(-0.0625), ckpt_path=path)

    # The run has zeros: its own parameters, and what was not sent before the checkpoint.
    assert module.weight.tolist() == [0.375 + 0.375] * 4


class Leaving(Callback):
    """Lets a peer go before the end, so that nobody waits for it."""

    def __init__(self, shared: GradwireCallback, peer: Any) -> None:
        self._shared, self._peer = shared, peer

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._peer.close()


def test_stats_are_logged_as_often_as_everything_else(master: LocalMaster, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    shared = callback(master, log_stats=True)

    trainer(shared, logger=logger, log_every_n_steps=2).fit(Module(), batches())

    text = (Path(logger.log_dir) / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert "gradwire/density" in text[0]
    column = text[0].split(",").index("gradwire/steps")
    assert [float(line.split(",")[column]) for line in text[1:]] == [2, 4, 6]


def test_where_lightning_is_not_the_older_package_is_taken() -> None:
    code = """
import importlib, sys
sys.modules["lightning"] = None  # as though it were not installed
import gradwire.integrations.lightning as ours
import pytorch_lightning
assert issubclass(ours.GradwireCallback, pytorch_lightning.Callback)
del sys.modules["lightning"]  # it is, but the script has imported the other one
assert issubclass(importlib.reload(ours).GradwireCallback, pytorch_lightning.Callback)
assert "lightning.pytorch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


class Keeping(Callback):
    """Keeps what the master has of the run, which is over after the training."""

    def __init__(self, master: LocalMaster) -> None:
        self._master = master

    def on_train_batch_end(self, *arguments: Any, **more: Any) -> None:
        self.series = self._master.series


class Logging(Module):
    """Logs its loss in every step, and the mean of all in every epoch."""

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("x" * 65, loss)
        self.log("\N{PILE OF POO}", float("nan"))
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("held-out", self.weight.mean())


def test_what_lightning_s_loggers_get_the_master_gets_with_the_same_steps(
    master: LocalMaster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger, shared, keeping = CSVLogger(tmp_path), callback(master, log_stats=True), Keeping(master)

    host = trainer(shared, keeping, logger=logger, log_every_n_steps=2)
    host.fit(Logging(), batches(), batches())

    logged = logged_by(keeping.series, 0)
    assert logged["loss_step"] == [(1, -4.0), (3, -12.0), (5, -20.0)]
    assert logged["loss_epoch"] == [(5, -10.0)]
    assert logged["held-out"] == [(5, 6.0)]
    assert logged.keys() == {
        "loss_step", "loss_epoch", "held-out", "epoch", "\N{PILE OF POO}"
    }  # fmt: skip
    assert len([m for m in caplog.messages if m == naming("framework", "x" * 65, 65)]) == 1
    assert host.loggers == [logger], "as it was before"


@pytest.mark.parametrize("options", [{"log": False}, {"logger": False}])
def test_where_it_is_switched_off_or_lightning_reads_no_values_the_master_gets_none(
    master: LocalMaster, tmp_path: Path, options: dict[str, Any]
) -> None:
    logger = options.pop("logger", CSVLogger(tmp_path))
    shared, keeping = callback(master, **options), Keeping(master)

    host = trainer(shared, keeping, logger=logger, log_every_n_steps=2)
    host.fit(Logging(), batches(), batches())

    assert logged_by(keeping.series, 0) == {}
