"""Resuming: runs continue from their last checkpoints.

Of each run, the newest intact checkpoint is taken; newer ones that are damaged are logged. The run
exists before any worker has joined: the first worker joins it like a late one, is sent the replica
of the checkpoint, and each rank's sequence continues from there. Updates that were accepted after
the checkpoint are lost, unless workers bring them.

A run that is over does not continue: the next worker begins a new one. Where there are more runs
than the limits allow, those are taken that were written last.
"""

import logging
from pathlib import Path
from typing import Final

from gradwire_protocol import InvalidMessageError, UsageError
from gradwire_protocol.messages.checkpoint.format import Checkpoint, CheckpointError
from gradwire_server.config import MasterConfig
from gradwire_server.series.saved import SavedSeries
from gradwire_server.series.series import Series
from gradwire_server.state.run import LastCheckpoint, Run, hash_of
from gradwire_udp.files.checkpoints import (
    CheckpointFile,
    in_names,
    is_of_run_that_is_over,
    names_in,
    newest,
    run_in,
)

logger = logging.getLogger("gradwire.master")

RESUME_AUTO: Final = "auto"
"""Stands for the folder of ``--checkpoint``, which may be empty. For service managers, which start
a master again and again with the same options."""


def resumed_runs(resume: str | None, checkpoint: Path | None, config: MasterConfig) -> list[Run]:
    """Return the runs that a master resumes, the one that was written last first.

    Parameters
    ----------
    resume : str or None
        A folder, or `RESUME_AUTO`.
    checkpoint : Path or None
        The folder of ``--checkpoint``.

    Raises
    ------
    UsageError
        If a run has checkpoints, and none can be used; or if a folder was named that has none of
        the run that ``--run`` says.
    """
    if resume is None:
        return []
    folder, is_auto = Path(resume), resume == RESUME_AUTO
    if is_auto:
        if checkpoint is None:
            raise UsageError(
                "--resume auto goes on from the folder of --checkpoint: say that, too, or pass "
                "--resume DIR"
            )
        folder = checkpoint
    names = _names_in(folder, config.run, may_lack=is_auto)
    runs = _newest_of_each(folder, names, config)
    for run in runs:
        if checkpoint is None or folder.resolve() != checkpoint.resolve():
            run.last_checkpoint = None  # the folder for new checkpoints does not have it yet
    return runs


def _names_in(folder: Path, run: str | None, *, may_lack: bool) -> list[str]:
    """Return the names of checkpoints, of one run or of all, the newest first.

    Raises `UsageError` if there are none, unless the folder `may_lack` them.
    """
    try:
        names = names_in(folder)
    except CheckpointError as error:
        raise UsageError(f"--resume: {error}") from None
    of = [name for name in names if run is None or run_in(name) == in_names(run)]
    if of:
        return of
    if may_lack:
        logger.info("there is no checkpoint in %s yet: beginning without a run", folder)
        return []
    if not names:
        raise UsageError(f"--resume: there is no checkpoint in {folder}")
    others = ", ".join(sorted({run_in(name) for name in names}))
    raise UsageError(
        f"--resume: {folder} has checkpoints of {others}, and --run says {run!r}: leave out "
        "--run, or leave out --resume"
    )


def _newest_of_each(folder: Path, names: list[str], config: MasterConfig) -> list[Run]:
    """Return the runs of a folder that go on, within the limits."""
    runs: list[Run] = []
    most = config.runs_max if config.standby is None and config.standby_of is None else 1
    elements_left = config.parameters_max
    for written in dict.fromkeys(run_in(name) for name in names):
        newest_name = next(name for name in names if run_in(name) == written)
        if is_of_run_that_is_over(newest_name):
            logger.info(
                "%s is of a run that is over: it does not go on, and the next worker begins a new "
                "one. gradwire.load_checkpoint loads its parameters into a model",
                newest_name,
            )
        elif len(runs) >= most:
            logger.warning("run %s is not resumed: %d runs are the limit", written, most)
        else:
            run = _newest(folder, written, config)
            if run is None:
                continue
            if run.layout.elements > elements_left:
                logger.warning(
                    "run %s is not resumed: all runs together may have %d parameters; start the "
                    "master with a larger --parameters-max",
                    written,
                    config.parameters_max,
                )
                continue
            elements_left -= run.layout.elements
            runs.append(run)
    return runs


def _newest(folder: Path, written: str, config: MasterConfig) -> Run | None:
    """Return the run of the newest checkpoint that can be used; None if that run is over."""
    try:
        found = newest(folder, _verify, of=written, elements_max=config.parameters_max)
    except CheckpointError as error:
        raise UsageError(f"--resume: {error}") from None
    for reason in found.passed_over:
        logger.error("a checkpoint cannot be used: %s; taking an older one", reason)
    path, checkpoint = found.file.path, found.file.checkpoint
    if checkpoint.finished or is_of_run_that_is_over(path.name):
        return None  # what came after it is damaged
    run = Run.resume(checkpoint, found.file.values, config.relay, buffers=found.file.buffers)
    run.series = _series_of(checkpoint, path)
    run.last_checkpoint = LastCheckpoint(
        path.name, checkpoint.versions, is_over=False, buffers_hash=hash_of(run.packed_buffers)
    )
    logger.info(
        "run %r goes on from %s: %d parameters, %d updates, digest %016x",
        run.name,
        path,
        len(run.replica),
        checkpoint.updates,
        checkpoint.digest,
    )
    return run


def _series_of(checkpoint: Checkpoint, path: Path) -> Series:
    """Return what was logged until a checkpoint; nothing if it cannot be read."""
    try:
        if checkpoint.series:
            return Series.restored(SavedSeries.decompressed(checkpoint.series))
    except InvalidMessageError as error:
        logger.warning(
            "%s: what was logged until then cannot be read, and the run goes on without it: %s",
            path,
            error,
        )
    return Series()


def _verify(file: CheckpointFile) -> None:
    """Raise `CheckpointError` for a file whose replica does not have its digest."""
    digest = Run.resume(file.checkpoint, file.values).replica.digest()
    if digest != file.checkpoint.digest:
        raise CheckpointError(
            f"{file.path} is damaged: its replica has digest {digest:016x}, its header says "
            f"{file.checkpoint.digest:016x}"
        )
