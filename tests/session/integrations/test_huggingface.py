"""The callback for transformers: real Trainers, each with a master of the test's own."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire import Session, UsageError
from gradwire.integrations import hosted_session
from gradwire_server.series.series import Series
from support.curves import logged_by
from support.local_master import LocalMaster
from support.sessions import HALF, delivered, join
from support.waiting import PROCESS, wait_until
from support.wording import naming

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, TrainerCallback, TrainingArguments  # only if there
from transformers.training_args import ParallelMode

from gradwire.integrations.huggingface import STATE_NAME, GradwireCallback

ROWS = 24


class Model(nn.Module):
    """Four weights; every step raises them by the learning rate, as long as it is plain SGD."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = -(self.weight * labels).sum() / len(labels)
        return {"loss": loss, "logits": labels}


class Watching(TrainerCallback):
    """Calls what a test says at an event; comes after the callback."""

    def __init__(self, **reactions: Any) -> None:
        for event, reaction in reactions.items():
            setattr(self, event, lambda *_, reaction=reaction, **__: reaction())


def callback(master: LocalMaster, **options: Any) -> GradwireCallback:
    usual = {
        "master": master.address,
        "threshold": HALF,
        "finish_residual": "send",
        "scale": "sum",
        "staleness_bound": "off",
    }
    return GradwireCallback(**{**usual, **options})


def trainer(
    model: nn.Module, folder: Path, *callbacks: Any, rate: float = 1.0, **options: Any
) -> Any:
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 1,
            "max_steps": 6,
            "optim": "sgd",
            "learning_rate": rate,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        }
    )
    rows = [{"labels": torch.ones(4)}] * ROWS
    return Trainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:2],
        callbacks=list(callbacks),
    )  # fmt: skip


def session_of(shared: GradwireCallback) -> Session:
    assert shared.session is not None
    return shared.session


def test_it_joins_steps_and_finishes(master: LocalMaster, tmp_path: Path) -> None:
    shared, model = callback(master), Model()

    trainer(model, tmp_path, shared).train()

    stats = session_of(shared).stats
    assert (stats.steps, stats.updates_sent) == (6, 6)
    assert model.weight.tolist() == [6.0] * 4
    with pytest.raises(UsageError, match="this session is over \\(finished\\)"):
        session_of(shared).step()
    master.wait_for_workers(0)


def test_gradients_that_accumulate_are_one_step(master: LocalMaster, tmp_path: Path) -> None:
    shared, model = callback(master), Model()

    trainer(model, tmp_path, shared, gradient_accumulation_steps=3).train()

    assert session_of(shared).stats.steps == 6
    assert model.weight.tolist() == [6.0] * 4


def test_the_optimizer_is_the_one_that_accelerate_has_wrapped(
    master: LocalMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def noting(target: object, *, optimizer: object, **settings: Any) -> Any:
        seen.append(type(optimizer))
        return gradwire.join(target, optimizer=optimizer, **settings)

    monkeypatch.setattr(hosted_session, "join", noting)

    trainer(Model(), tmp_path, callback(master)).train()

    assert seen == [torch.optim.SGD]


def test_nothing_is_applied_during_an_evaluation(master: LocalMaster, tmp_path: Path) -> None:
    peer = join(master, Model())
    shared, model = callback(master), Model()
    during: list[float] = []

    def predicted() -> None:
        if len(during) == 2:
            return  # the evaluation after the end
        if not during:
            peer.push(torch.full((4,), 8.0))
            delivered(peer, 1)
        assert session_of(shared).pull() == []
        during.append(model.weight[0].item())

    def evaluated() -> None:
        while not session_of(shared).stats.updates_applied:
            session_of(shared).pull()
        peer.close()  # so that nobody waits for it

    watching = Watching(on_prediction_step=predicted, on_evaluate=evaluated)
    trainer(
        model, tmp_path, shared, watching, eval_strategy="steps", eval_steps=4, max_steps=5,
        per_device_eval_batch_size=1,
    ).train()  # fmt: skip

    assert during == [4.0, 4.0]
    assert model.weight.tolist() == [13.0] * 4


class FailingModel(Model):
    fails = True

    def forward(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.fails and self.weight[0].item() == 3.0:
            raise ZeroDivisionError("as planned")
        return super().forward(labels)


def test_as_a_context_manager_it_leaves_at_once_when_training_fails(
    master: LocalMaster, tmp_path: Path
) -> None:
    model = FailingModel()

    with pytest.raises(ZeroDivisionError), callback(master) as shared:
        trainer(model, tmp_path, shared).train()

    with pytest.raises(UsageError, match="this session is over \\(ZeroDivisionError: as planned"):
        session_of(shared).step()
    master.wait_for_workers(0)


def test_several_processes_that_are_synchronised_are_refused() -> None:
    arguments: Any = SimpleNamespace(parallel_mode=ParallelMode.DISTRIBUTED, world_size=2)

    with pytest.raises(UsageError, match="distributed over 2 processes: gradwire takes the place"):
        GradwireCallback().on_init_end(arguments, None, None)


def test_a_checkpoint_has_the_residual_and_the_next_training_goes_on_from_it(
    master: LocalMaster, tmp_path: Path
) -> None:
    with LocalMaster() as first:
        saving = trainer(
            Model(), tmp_path, callback(first), rate=0.0625, save_strategy="steps", save_steps=4
        )
        saving.train()
    checkpoint = tmp_path / "checkpoint-4"
    state = torch.load(checkpoint / STATE_NAME, weights_only=True)
    assert state["residual"].tolist() == [0.25] * 4

    peer = join(master, Model())
    shared, model = callback(master), Model()
    again = trainer(model, tmp_path, shared, Watching(on_step_begin=peer.close), rate=0.0625)
    again.train(resume_from_checkpoint=str(checkpoint))

    # The run has zeros: two steps more, and what was not sent before the checkpoint.
    assert model.weight.tolist() == [0.125 + 0.25] * 4
    assert session_of(shared).stats.steps == 2


def test_the_last_checkpoint_is_of_what_all_workers_end_with(
    master: LocalMaster, tmp_path: Path
) -> None:
    shared, model = callback(master), Model()

    trainer(model, tmp_path, shared, rate=0.0625, save_strategy="steps", save_steps=6).train()

    assert session_of(shared).stats.updates_sent == 1, "with finish()"
    assert not (tmp_path / "checkpoint-6" / STATE_NAME).exists(), "nothing is left unsent"


@pytest.mark.parametrize("first", [True, False])
def test_a_training_that_is_stopped_early_stops_everywhere(
    master: LocalMaster, tmp_path: Path, first: bool
) -> None:
    """By a callback at one worker, or by the word of another worker."""
    peer = join(master, Model())
    shared, model = callback(master), Model()

    def stop(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 2:
            if first:
                control.should_training_stop = True
            else:
                peer.stop_training("it is enough")
                wait_until(lambda: session_of(shared).stopping is not None, "it to be heard")

    stopping = type("Stopping", (TrainerCallback,), {"on_step_end": stop})()
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(trainer(model, tmp_path, stopping, shared, max_steps=ROWS).train)
        wait_until(lambda: peer.stopping is not None, "the other worker to hear of it")
        peer.finish()
        training.result(PROCESS)

    assert session_of(shared).stats.steps == 2
    assert peer.stopping == naming("2 steps" if first else "it is enough")


@pytest.mark.parametrize("event", ["on_step_end", "on_epoch_end"])
def test_a_training_that_another_callback_stops_is_finished(
    master: LocalMaster, tmp_path: Path, event: str
) -> None:
    class Stopping(TrainerCallback):
        pass

    def stop(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_training_stop = True

    setattr(Stopping, event, stop)
    shared, model = callback(master), Model()

    trainer(model, tmp_path, Stopping(), shared, max_steps=2 * ROWS).train()

    with pytest.raises(UsageError, match="this session is over \\(finished\\)"):
        session_of(shared).step()
    assert session_of(shared).stats.steps == (1 if event == "on_step_end" else ROWS)


def test_the_best_model_is_loaded_after_the_end_and_not_shared(
    master: LocalMaster, tmp_path: Path
) -> None:
    shared, model = callback(master), Model()

    trainer(
        model, tmp_path, shared, save_strategy="steps", save_steps=2, eval_strategy="steps",
        eval_steps=2, load_best_model_at_end=True, metric_for_best_model="loss",
        greater_is_better=True,
    ).train()  # fmt: skip

    assert model.weight.tolist() == [2.0] * 4, "the first checkpoint's"
    assert session_of(shared).stats.updates_sent == 6
    with pytest.raises(UsageError, match="this session is over \\(finished\\)"):
        session_of(shared).step()


def test_another_model_that_was_loaded_before_the_end_is_not_shared(
    master: LocalMaster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared, model = callback(master), Model()
    host = trainer(model, tmp_path, shared)
    host.create_optimizer()
    shared.on_train_begin(host.args, host.state, host.control, model=model, optimizer=None)
    host.args.load_best_model_at_end = True

    shared.on_train_end(host.args, host.state, host.control)

    assert "left without finishing" in caplog.text
    with pytest.raises(UsageError, match="this session is over \\(another model was loaded\\)"):
        session_of(shared).step()


def test_stats_are_logged_with_the_loss(master: LocalMaster, tmp_path: Path) -> None:
    shared = callback(master, log_stats=True)
    host = trainer(Model(), tmp_path, shared, logging_steps=2)

    host.train()

    logged = [entry for entry in host.state.log_history if "loss" in entry]
    assert [entry["gradwire/steps"] for entry in logged] == [2, 4, 6]
    assert not any("gradwire/steps" in e for e in host.state.log_history if "loss" not in e)


def test_what_the_trainer_logs_before_the_last_step_the_master_gets(
    master: LocalMaster, tmp_path: Path
) -> None:
    kept: list[Series] = []
    shared = callback(master, log_stats=True)
    watching = Watching(on_step_begin=lambda: kept.append(master.series))
    host = trainer(
        Model(), tmp_path, shared, watching, logging_steps=1, eval_strategy="steps", eval_steps=2
    )

    host.train()

    logged = logged_by(kept[-1], 0)
    history = {
        name: [(entry["step"], entry[name]) for entry in host.state.log_history if name in entry]
        for name in ("loss", "learning_rate", "eval_loss")
    }
    assert logged["loss"] == history["loss"][:5]
    assert logged["learning_rate"] == history["learning_rate"][:5]
    assert logged["eval_loss"] == history["eval_loss"][:2]
    assert not any(name.startswith("gradwire/") for name in logged)


def test_where_it_is_switched_off_the_master_gets_nothing(
    master: LocalMaster, tmp_path: Path
) -> None:
    kept: list[Series] = []
    watching = Watching(on_step_begin=lambda: kept.append(master.series))

    trainer(Model(), tmp_path, callback(master, log=False), watching, logging_steps=1).train()

    assert logged_by(kept[-1], 0) == {}
