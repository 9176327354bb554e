"""Resuming: a run goes on where its last checkpoint ends.

The newest checkpoint that is whole is taken, and said which newer ones are not. The run is there
before any worker is: the first one to come joins it as one that is late, gets what the checkpoint
has, and each rank's sequence goes on where the checkpoint ends. What was accepted after that is
lost, unless workers bring it.

A run that was finished does not go on: as in a master that has seen its end, the next worker begins
a new one.
"""

import logging
from pathlib import Path
from typing import Final

from gradwire_protocol import UsageError
from gradwire_protocol.messages.checkpoint import CheckpointError
from gradwire_server.config import MasterConfig
from gradwire_server.state.run import LastCheckpoint, Run
from gradwire_udp.files.checkpoints import CheckpointFile, names_in, newest

logger = logging.getLogger("gradwire.master")

RESUME_AUTO: Final = "auto"
"""Instead of a folder: that of ``--checkpoint``, and no error where nothing is in it yet. For
whatever starts a master again and again with the same options."""


def resumed_run(resume: str | None, checkpoint: Path | None, config: MasterConfig) -> Run | None:
    """Return the run that a master begins with; None where it begins without.

    Parameters
    ----------
    resume : str or None
        A folder, or `RESUME_AUTO`.
    checkpoint : Path or None
        Where checkpoints will be written.

    Raises
    ------
    UsageError
        If there is none that can be used, or it is of another run than the one to serve.
    """
    if resume is None:
        return None
    folder = Path(resume)
    if resume == RESUME_AUTO:
        if checkpoint is None:
            raise UsageError(
                "--resume auto goes on from the folder of --checkpoint: say that, too, or name one"
            )
        folder = checkpoint
        if not names_in(folder):
            logger.info("there is no checkpoint in %s yet: beginning without a run", folder)
            return None
    run = _newest(folder, config)
    if run is not None and (checkpoint is None or not _same(folder, checkpoint)):
        run.kept = None  # it is not there yet
    return run


def _newest(folder: Path, config: MasterConfig) -> Run | None:
    try:
        found = newest(folder, _verify, elements_max=config.parameters_max)
    except CheckpointError as error:
        raise UsageError(f"--resume: {error}") from None
    for reason in found.passed_over:
        logger.error("a checkpoint cannot be used: %s; taking an older one", reason)
    path, checkpoint = found.file.path, found.file.checkpoint
    if config.run not in (None, checkpoint.run):
        raise UsageError(
            f"--resume: {path} is of run {checkpoint.run!r}, and this master is to serve "
            f"{config.run!r} only: leave --run out, or begin without --resume"
        )
    if checkpoint.finished:
        logger.warning(
            "run %r is finished, says %s: it does not go on, and the next worker begins a new one. "
            "gradwire.load_checkpoint gives a model its parameters",
            checkpoint.run,
            path,
        )
        return None
    run = Run.resume(checkpoint, found.file.values, config.relay)
    run.kept = LastCheckpoint(path.name, checkpoint.versions, finished=False)
    logger.info(
        "run %r goes on from %s: %d parameters, %d updates, digest %016x",
        run.name,
        path,
        len(run.replica),
        checkpoint.updates,
        checkpoint.digest,
    )
    return run


def _verify(file: CheckpointFile) -> None:
    """Refuse a file whose replica was not what it should have been when it was written."""
    digest = Run.resume(file.checkpoint, file.values).replica.digest()
    if digest != file.checkpoint.digest:
        raise CheckpointError(
            f"{file.path}: its replica has digest {digest:016x}, and not "
            f"{file.checkpoint.digest:016x} as it says"
        )


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
