"""`load_checkpoint`: a run's parameters and buffers from a checkpoint, without any network."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from gradwire.errors import UsageError
from gradwire.target.adapters import kept_buffers_of, places_of
from gradwire.target.parameters import Places
from gradwire_codecs import Replica
from gradwire_protocol.messages.checkpoint.format import CheckpointError
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_udp.files.checkpoints import CheckpointFile, in_names, newest, read

logger = logging.getLogger("gradwire.checkpoints")


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """What `load_checkpoint` found in a file."""

    path: Path
    """File of the checkpoint."""
    run: str
    """Name of the run."""
    elements: int
    """Number of parameters of the model."""
    quantum: float
    """Resolution of the parameters."""
    versions: Mapping[int, int]
    """Number of updates that the parameters contain, by rank."""
    updates: int
    """Number of updates that the parameters contain, of all ranks."""
    finished: bool
    """Whether the run was finished."""
    digest: str
    """As `Session.digest` returns it."""
    buffers: tuple[str, ...] = ()
    """Names of the buffers that were loaded."""


def load_checkpoint(
    path: str | PathLike[str], target: object, *, run: str | None = None
) -> LoadedCheckpoint:
    """Load the parameters and buffers that a master has saved into a model.

    The parameters are those of a session after its last step, to the last bit. The buffers, such as
    those of BatchNorm, are what a worker would begin with: see `Settings.share_buffers`.

    Parameters
    ----------
    path : path
        A checkpoint, or a folder, of which the newest undamaged checkpoint is loaded.
    target : torch.nn.Module, list of torch.Tensor, or ndarray of dtype float32
        As for `join`. It is changed in place, and keeps its device and dtype.
    run : str, optional
        Name of the run of which a folder's newest checkpoint is loaded; without it, of any run.

    Returns
    -------
    LoadedCheckpoint

    Raises
    ------
    UsageError
        If the file does not exist, is damaged or no checkpoint, or is of another model, of which
        the message names the first difference. The target is then unchanged.

    Examples
    --------
    ::

        gradwire.load_checkpoint("/var/lib/gradwire", model)
    """
    places = places_of(target)
    file = _read(Path(path), run)
    checkpoint = file.checkpoint
    model = model_of(checkpoint.layout)
    difference = model.difference(places.layout)
    if difference is not None:
        raise UsageError(
            f"{file.path}: the model differs from that of run {checkpoint.run!r}: {difference}"
        )
    kept = checkpoint.buffers.arrays(file.buffers)
    buffers = kept_buffers_of(target)
    try:
        missing = [] if buffers is None else buffers.missing_in(kept)
    except UsageError as error:
        raise UsageError(f"{file.path}: {error}") from None
    _write(_replica_of(file), places)
    written = [] if buffers is None else buffers.write_kept(kept)
    if missing:
        logger.warning("%s has no values of these buffers: %s", file.path, ", ".join(missing))
    return LoadedCheckpoint(
        path=file.path,
        run=checkpoint.run,
        elements=model.elements,
        quantum=2.0**checkpoint.quantum_exponent,
        versions=dict(checkpoint.versions),
        updates=checkpoint.updates,
        finished=checkpoint.finished,
        digest=f"{checkpoint.digest:016x}",
        buffers=tuple(written),
    )


def _read(path: Path, run: str | None) -> CheckpointFile:
    if not path.is_dir():
        file = read(path)
        _verify(file)
        if run not in (None, file.checkpoint.run):
            raise UsageError(f"{path} is of run {file.checkpoint.run!r}, not of {run!r}")
        return file
    found = newest(path, _verify, of=None if run is None else in_names(run))
    for reason in found.passed_over:
        logger.warning("a checkpoint cannot be used: %s; taking an older one", reason)
    return found.file


def _verify(file: CheckpointFile) -> None:
    """Refuse a file whose replica was damaged before the file was written."""
    digest = _replica_of(file).digest()
    if digest != file.checkpoint.digest:
        raise CheckpointError(
            f"{file.path} is damaged: its replica has digest {digest:016x}, and the file says "
            f"{file.checkpoint.digest:016x}"
        )


def _replica_of(file: CheckpointFile) -> Replica:
    elements = file.checkpoint.replica_elements
    values = np.frombuffer(file.values, "<i4", elements).astype(np.int32, copy=False)
    return Replica(values, file.checkpoint.quantum_exponent)


def _write(replica: Replica, places: Places) -> None:
    """Write a replica to its tensors one by one, which takes no second copy of it."""
    at = 0
    for tensor, write in zip(places.layout.tensors, places.writers, strict=True):
        if tensor.elements:
            values = replica.values[at : at + tensor.elements]
            at += tensor.elements
            parameters = np.empty(tensor.elements, np.float32)
            Replica(values, replica.quantum_exponent).write_parameters(parameters)
            write(parameters)
