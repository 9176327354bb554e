"""`GradwireCallback` for the Trainer of Hugging Face's transformers.

One process for each worker, and none of them distributed in the sense of accelerate: gradwire is in
place of DDP, not on top of it. `gradwire.integrations.stand_alone` sees to that under a launcher.
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
"""File in the folder of a checkpoint."""

ALONE: Final = ("not_parallel", "not_distributed")
"""Modes of parallelism with one process."""


class GradwireCallback(TrainerCallback):
    """Shares what a Trainer of transformers trains.

    Joins when the training begins; steps after every step of the optimizer, so not where gradients
    accumulate; applies nothing during an evaluation; finishes with the last step, before the last
    evaluation and checkpoint, when the model has the bits that all workers have. Checkpoints get a
    file with what the session has to keep.

    A Trainer tells nobody when it fails. Use the callback as a context manager around ``train()``:
    then an exception leaves the run at once. Without that, the session leaves when the process
    ends, or when training begins anew.

    Parameters
    ----------
    wait_seconds : float
        How long to wait for as many workers as the setting `workers`, or WORLD_SIZE, says; 0 for
        not at all.
    log_stats : bool
        Whether the numbers of `Session.stats` are added to what the Trainer logs of the training.
        Those who were told before this callback do not get them.
    **settings
        Keywords of `gradwire.join`.

    Raises
    ------
    UsageError
        If a keyword is unknown; in ``Trainer()``, if several processes are synchronised.
    """

    def __init__(
        self, *, wait_seconds: float = 60.0, log_stats: bool = False, **settings: Any
    ) -> None:
        self._hosted = HostedSession(settings, wait_seconds)
        self._log_stats = log_stats
        self._is_loaded = False

    @property
    def session(self) -> Session | None:
        """The session, which is over after the training; None before the first one."""
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
        """Leave at once, if a training is still going on."""
        self._hosted.close("closed" if error is None else f"{type(error).__name__}: {error}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next session go on from what ``session.state_dict()`` returned.

        Done by itself for a checkpoint in the Trainer's output folder.
        """
        self._hosted.load_state_dict(state)
        self._is_loaded = True

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Refuse what gradwire is in place of."""
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
        # Accelerate has wrapped it.
        self._hosted.begin(model, getattr(optimizer, "optimizer", optimizer))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Share what the optimizer has changed."""
        self._hosted.step()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Keep the parameters as they are: an evaluation goes on."""
        self._hosted.pause()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Go on."""
        self._hosted.resume()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Finish, if this was the last step: what is evaluated and saved then is everybody's."""
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
        """Finish, where the data ended before the steps did."""
        if args.load_best_model_at_end and self._hosted.is_open:
            # Nobody has trained from the present parameters to those.
            logger.warning("left without finishing: the best model was loaded before that")
            self._hosted.close("another model was loaded")
        self._hosted.finish()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Put what the session has to keep into the checkpoint."""
        kept = self._hosted.state_dict()
        folder = _checkpoint_folder(args, state)
        if not kept or not args.should_save or not folder.is_dir():
            return
        part = folder / f"{STATE_NAME}.part"
        torch.save(kept, part)
        part.replace(folder / STATE_NAME)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **more: object,
    ) -> None:
        """Add the session's numbers to those of the training."""
        if self._log_stats and logs is not None and "loss" in logs:
            figures = self._hosted.figures()
            logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)

    def _load(self, args: TrainingArguments, state: TrainerState) -> None:
        """Find what the session has kept in the checkpoint that the training goes on from."""
        given = args.resume_from_checkpoint
        folder = Path(given) if isinstance(given, str) else _checkpoint_folder(args, state)
        path = folder / STATE_NAME
        if path.exists():
            self._hosted.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        else:
            logger.info("%s is not there: nothing that was not sent is taken up again", path)


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
