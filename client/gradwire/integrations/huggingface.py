"""`GradwireCallback` for the Trainer of Hugging Face's transformers.

Each worker is a process of its own, and accelerate must not know of the others: gradwire takes the
place of DDP. Under a launcher, call `gradwire.integrations.stand_alone` first.
"""

import logging
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradwire.errors import UsageError
from gradwire.integrations.hosted_session import HostedSession
from gradwire.session.session import Session

logger = logging.getLogger("gradwire.huggingface")

STATE_NAME: Final = "gradwire_session.pt"
"""File with a session's state, in the folder of a checkpoint."""

ALONE: Final = ("not_parallel", "not_distributed")
"""Values of `TrainingArguments.parallel_mode` with one process."""


class GradwireCallback(TrainerCallback):
    """Shares the model that a Trainer of transformers trains.

    - It joins when training begins.
    - It steps after every step of the optimizer, so not where gradients accumulate.
    - It applies no updates during an evaluation.
    - It ends the training where `Session.stopping` says so. Where a callback before this one ends
      it early, as transformers' `EarlyStoppingCallback` does, it ends at all workers.
    - It finishes with the last step, before the last evaluation and checkpoint. The model then has
      the same bits at all workers.
    - Checkpoints get a file with the session's state.

    A Trainer does not tell its callbacks when it fails. Use the callback as a context manager
    around ``train()``: then the session leaves the run at once on an exception. Otherwise it leaves
    when the process ends, or when the next training begins.

    Parameters
    ----------
    log : bool
        Whether the master gets what the Trainer logs, as by `Session.log`, until the end of the
        training.
    log_stats : bool
        Whether to add the numbers of `Session.stats` to what the Trainer logs of the training.
        Callbacks that the Trainer calls before this one do not get them.
    **settings
        Keywords of `gradwire.join`.

    Raises
    ------
    UsageError
        If a keyword is unknown; in ``Trainer()``, if it synchronises several processes.
    """

    def __init__(self, *, log: bool = True, log_stats: bool = False, **settings: Any) -> None:
        self._hosted = HostedSession(settings, logs=log)
        self._log_stats = log_stats
        self._is_loaded = False

    @property
    def session(self) -> Session | None:
        """The last session, which is over after the training; None before the first one."""
        return self._hosted.session

    def __enter__(self) -> Self:
        """Return the callback."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave at once, if the training has not ended."""
        self._hosted.close("closed" if error is None else f"{type(error).__name__}: {error}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep what ``session.state_dict()`` returned for the next session.

        For a checkpoint in the Trainer's output folder the callback does so by itself.
        """
        self._hosted.load_state_dict(state)
        self._is_loaded = True

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Refuse a Trainer of several processes."""
        if args.parallel_mode.value not in ALONE:
            raise UsageError(
                f"the Trainer is {args.parallel_mode.value} over {args.world_size} processes: "
                "gradwire takes the place of DDP and its like. Call "
                "gradwire.integrations.stand_alone() before TrainingArguments(), and start a "
                "process for each worker, as `gradwire run` does"
            )

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: torch.nn.Module,
        optimizer: object,
        **more: object,
    ) -> None:
        """Join."""
        if state.global_step and not self._is_loaded:
            self._load(args, state)
        self._is_loaded = False
        # Accelerate has wrapped the optimizer.
        self._hosted.begin(model, getattr(optimizer, "optimizer", optimizer))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Share what the optimizer has changed."""
        self._hosted.step()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Apply no updates during an evaluation."""
        self._hosted.pause()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Apply updates again."""
        self._hosted.resume()
        self._end_everywhere_if_early(state, control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Finish after the last step, so that the shared model is evaluated and saved."""
        self._end_everywhere_if_early(state, control)
        control.should_training_stop |= self._hosted.is_to_end
        if control.should_training_stop:
            self._hosted.finish()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Finish, if an evaluation or another callback has stopped the training."""
        if control.should_training_stop:
            self._hosted.finish()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Finish, where the data ended before the last step."""
        if args.load_best_model_at_end and self._hosted.is_open:
            # The best model is that of an earlier step: going back to it is no change to share.
            logger.warning("left without finishing: the Trainer has loaded its best model already")
            self._hosted.close("another model was loaded")
        self._hosted.finish()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Put the session's state into the checkpoint."""
        session_state = self._hosted.state_dict()
        folder = _checkpoint_folder(args, state)
        if not session_state or not args.should_save or not folder.is_dir():
            return
        part = folder / f"{STATE_NAME}.part"
        torch.save(session_state, part)
        part.replace(folder / STATE_NAME)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **more: object,
    ) -> None:
        """Log it at the master, and add the session's statistics to it."""
        if logs is not None:
            self._hosted.log(logs, state.global_step)
        if self._log_stats and logs is not None and "loss" in logs:
            figures = self._hosted.figures()
            logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)

    def _end_everywhere_if_early(self, state: TrainerState, control: TrainerControl) -> None:
        """Have all workers end their training, if another callback ends this one's."""
        if control.should_training_stop and state.global_step < state.max_steps:
            self._hosted.end_everywhere(f"a Trainer was stopped after {state.global_step} steps")

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        """Load the session's state from the checkpoint that the training resumes."""
        given = args.resume_from_checkpoint
        folder = Path(given) if isinstance(given, str) else _checkpoint_folder(args, state)
        path = folder / STATE_NAME
        if path.exists():
            self._hosted.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        else:
            logger.info("no file %s: the unsent changes of the earlier session are lost", path)


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
