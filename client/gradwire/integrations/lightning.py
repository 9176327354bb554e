"""`GradwireCallback` for Lightning: its Trainer trains, gradwire shares.

Works with ``lightning`` and ``pytorch_lightning``, whichever the script imports. Each worker is a
process of its own, with a Trainer of one device: gradwire takes the place of DDP.
"""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from gradwire.errors import UsageError
from gradwire.integrations.hosted_session import HostedSession
from gradwire.session.session import Session

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers import Logger
elif "lightning.pytorch" in sys.modules or (
    "pytorch_lightning" not in sys.modules and find_spec("lightning") is not None
):
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger
else:
    from pytorch_lightning import Callback
    from pytorch_lightning.loggers import Logger


class _MasterLogger(Logger):
    """Gets what all loggers of a Trainer get: numbers that Lightning has read off the device."""

    def __init__(self, hosted: HostedSession) -> None:
        super().__init__()
        self._hosted = hosted

    @property
    def name(self) -> str:
        """Its name."""
        return "gradwire"

    @property
    def version(self) -> str:
        """Its version: it has none."""
        return ""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Have the master keep what Lightning logs."""
        self._hosted.log(metrics, step)

    def log_hyperparams(self, *parameters: object, **more: object) -> None:
        """Do nothing."""


class GradwireCallback(Callback):
    """Shares the model that a Lightning Trainer trains.

    - It joins when training starts: after the sanity check, and after a checkpoint and the
      optimizers' state were restored.
    - It steps after every batch in which an optimizer stepped, automatically or by hand; so not
      where gradients accumulate, nor where a scaler skips a step.
    - It applies no updates during validation.
    - It finishes at the end of ``fit``. The model then has the same bits at all workers.
    - It ends the training where `Session.stopping` says so. Where another callback ends it early,
      as Lightning's `EarlyStopping` does, it ends at all workers.
    - It leaves at once on an exception.
    - Checkpoints contain the session's state.

    Parameters
    ----------
    log : bool
        Whether the master gets what Lightning's loggers get, as by `Session.log`. A Trainer without
        a logger reads no values, so there is nothing to get.
    log_stats : bool
        Whether to log the numbers of `Session.stats`, every `log_every_n_steps` steps.
    **settings
        Keywords of `gradwire.join`, which is also given the optimizer where there is only one.

    Raises
    ------
    UsageError
        If a keyword is unknown; in ``fit``, if the strategy synchronises processes.
    """

    def __init__(self, *, log: bool = True, log_stats: bool = False, **settings: Any) -> None:
        self._hosted = HostedSession(settings, logs=log)
        self._logger = _MasterLogger(self._hosted) if log else None
        self._log_stats = log_stats
        self._has_stepped = False
        self._steps = 0
        self._step_hooks: list[Any] = []

    @property
    def session(self) -> Session | None:
        """The last session, which is over after ``fit``; None before the first one."""
        return self._hosted.session

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Refuse a strategy of several processes, before training begins."""
        kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
        if stage == "fit" and ("ParallelStrategy" in kinds or trainer.world_size > 1):
            raise UsageError(
                f"{type(trainer.strategy).__name__} with {trainer.world_size} processes: gradwire "
                "takes the place of DDP and its like. Give the Trainer devices=1 and "
                "strategy='auto', and start a process for each worker, as `gradwire run` does"
            )

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Join."""
        optimizers = trainer.optimizers
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                raise UsageError(
                    f"{type(optimizer).__name__} is no torch.optim.Optimizer: it calls no hook "
                    "after its steps, by which gradwire knows of them"
                )
        self._has_stepped = False
        self._steps = 0
        self._hosted.begin(pl_module, optimizers[0] if len(optimizers) == 1 else None)
        if trainer.loggers and self._logger is not None:
            # The last one: of the first, Lightning takes folders and names.
            trainer.loggers = [*trainer.loggers, self._logger]
        # Only optimizers know: a scaler may skip a step, and a module may step by hand.
        self._step_hooks = [each.register_step_post_hook(self._note_step) for each in optimizers]

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", *batch: object, **more: object
    ) -> None:
        """Share what the optimizers have changed."""
        if not self._has_stepped:
            return
        self._has_stepped = False
        self._hosted.step()
        self._steps += 1
        if self._hosted.is_to_end:
            trainer.should_stop = True
        every = trainer.log_every_n_steps
        if self._log_stats and every and self._steps % every == 0:
            pl_module.log_dict(self._hosted.figures(), on_step=True, on_epoch=False, batch_size=1)

    def on_validation_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Apply no updates during validation."""
        self._hosted.pause()

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Apply updates again."""
        self._hosted.resume()

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Finish, and have all others do so if this training ends early."""
        self._remove_hooks(trainer)
        if trainer.should_stop:
            self._hosted.end_everywhere(f"a Trainer was stopped after {self._steps} steps")
        self._hosted.finish()

    def on_exception(
        self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException
    ) -> None:
        """Leave at once."""
        self._remove_hooks(trainer)
        self._hosted.close(f"{type(exception).__name__}: {exception}")

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Leave, where a training ended without either of the two calls above."""
        self._remove_hooks(trainer)
        self._hosted.close(f"{stage} was torn down")

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state for a checkpoint."""
        return self._hosted.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the next session."""
        self._hosted.load_state_dict(state_dict)

    def _note_step(self, optimizer: Optimizer, *arguments: object) -> None:
        self._has_stepped = True

    def _remove_hooks(self, trainer: "Trainer") -> None:
        if self._logger in trainer.loggers:
            trainer.loggers = [each for each in trainer.loggers if each is not self._logger]
        for hook in self._step_hooks:
            hook.remove()
        self._step_hooks = []
