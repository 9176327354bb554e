"""Resuming: a run continues from its last checkpoint.

The newest intact checkpoint is taken; newer ones that are damaged are logged. The run exists before
any worker has joined: the first worker joins it like a late one, is sent the replica of the
checkpoint, and each rank's sequence continues from there. Updates that were accepted after the
checkpoint are lost, unless workers bring them.

A finished run does not continue: the next worker begins a new one.
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
"""Stands for the folder of ``--checkpoint``, which may be empty. For service managers, which start
a master again and again with the same options."""


def resumed_run(resume: str | None, checkpoint: Path | None, config: MasterConfig) -> Run | None:
    """Return the run that a master resumes; None where it starts without one.

    Parameters
    ----------
    resume : str or None
        A folder, or `RESUME_AUTO`.
    checkpoint : Path or None
        The folder of ``--checkpoint``.

    Raises
    ------
    UsageError
        If no checkpoint can be used, or it is of another run than ``--run`` says.
    """
    if resume is None:
        return None
    folder = Path(resume)
    if resume == RESUME_AUTO:
        if checkpoint is None:
            raise UsageError(
                "--resume auto goes on from the folder of --checkpoint: say that, too, or pass "
                "--resume DIR"
            )
        folder = checkpoint
        if not names_in(folder):
            logger.info("there is no checkpoint in %s yet: beginning without a run", folder)
            return None
    run = _newest(folder, config)
    if run is not None and (checkpoint is None or folder.resolve() != checkpoint.resolve()):
        run.last_checkpoint = None  # the folder for new checkpoints does not have it yet
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
            f"--resume: {path} is of run {checkpoint.run!r}, and --run says {config.run!r}: leave "
            "out --run, or leave out --resume"
        )
    if checkpoint.finished:
        logger.warning(
            "run %r has finished, says %s: it does not continue, and the next worker begins a new "
            "one. gradwire.load_checkpoint loads its parameters into a model",
            checkpoint.run,
            path,
        )
        return None
    run = Run.resume(checkpoint, found.file.values, config.relay)
    run.last_checkpoint = LastCheckpoint(path.name, checkpoint.versions, finished=False)
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
    """Raise `CheckpointError` for a file whose replica does not have its digest."""
    digest = Run.resume(file.checkpoint, file.values).replica.digest()
    if digest != file.checkpoint.digest:
        raise CheckpointError(
            f"{file.path} is damaged: its replica has digest {digest:016x}, its header says "
            f"{file.checkpoint.digest:016x}"
        )
