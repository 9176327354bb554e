"""`load_checkpoint`: the parameters of a run from a file that its master has written.

No master and no network is needed.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from gradwire.errors import UsageError
from gradwire.target.adapters import places_of
from gradwire.target.parameters import Places
from gradwire_codecs import Replica
from gradwire_protocol.messages.checkpoint import CheckpointError
from gradwire_udp.files.checkpoints import CheckpointFile, newest, read

logger = logging.getLogger("gradwire.checkpoints")


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """What a checkpoint that was loaded says of itself."""

    path: Path
    """The file."""
    run: str
    """Name of the run."""
    elements: int
    """Parameters of the model."""
    quantum: float
    """Resolution of the parameters."""
    versions: Mapping[int, int]
    """Which updates the parameters contain: by rank, how many."""
    updates: int
    """How many that are in all."""
    finished: bool
    """Whether the run was finished."""
    digest: str
    """As `Session.digest` returns it."""


def load_checkpoint(path: str | PathLike[str], target: object) -> LoadedCheckpoint:
    """Give a model the parameters that a master has written down.

    They are what a session has after its last step, to the last bit. Buffers, such as those of
    BatchNorm, are not among them.

    Parameters
    ----------
    path : path
        A checkpoint, or a folder of them: then the newest one that is not damaged.
    target : torch.nn.Module, list of torch.Tensor, or ndarray of dtype float32
        As for `join`. It is written to in place, and stays on its device and of its dtype.

    Returns
    -------
    LoadedCheckpoint

    Raises
    ------
    UsageError
        If there is no such file, it is none or damaged, or it is of another model: the first
        difference is named. Nothing was changed then.

    Examples
    --------
    ::

        gradwire.load_checkpoint("/var/lib/gradwire", model)
    """
    places = places_of(target)
    file = _read(Path(path))
    checkpoint = file.checkpoint
    difference = checkpoint.layout.difference(places.layout)
    if difference is not None:
        raise UsageError(
            f"{file.path}: the model differs from that of run {checkpoint.run!r}: {difference}"
        )
    _write(_replica_of(file), places)
    return LoadedCheckpoint(
        path=file.path,
        run=checkpoint.run,
        elements=checkpoint.layout.elements,
        quantum=2.0**checkpoint.quantum_exponent,
        versions=dict(checkpoint.versions),
        updates=checkpoint.updates,
        finished=checkpoint.finished,
        digest=f"{checkpoint.digest:016x}",
    )


def _read(path: Path) -> CheckpointFile:
    if not path.is_dir():
        file = read(path)
        _verify(file)
        return file
    found = newest(path, _verify)
    for reason in found.passed_over:
        logger.warning("a checkpoint cannot be used: %s; taking an older one", reason)
    return found.file


def _verify(file: CheckpointFile) -> None:
    """Refuse a file whose replica was not what it should have been when it was written."""
    digest = _replica_of(file).digest()
    if digest != file.checkpoint.digest:
        raise CheckpointError(
            f"{file.path}: its replica has digest {digest:016x}, and not "
            f"{file.checkpoint.digest:016x} as it says"
        )


def _replica_of(file: CheckpointFile) -> Replica:
    values = np.frombuffer(file.values, "<i4").astype(np.int32, copy=False)
    return Replica(values, file.checkpoint.quantum_exponent)


def _write(replica: Replica, places: Places) -> None:
    """Write a replica to its tensors, one after the other: no second copy of all of it."""
    at = 0
    for tensor, write in zip(places.layout.tensors, places.writers, strict=True):
        if tensor.elements:
            values = replica.values[at : at + tensor.elements]
            at += tensor.elements
            parameters = np.empty(tensor.elements, np.float32)
            Replica(values, replica.quantum_exponent).write_parameters(parameters)
            write(parameters)
