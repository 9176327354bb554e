"""`load_checkpoint`: the parameters of a run from a checkpoint, without a master or a network."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from os import PathLike
from pathlib import Path

import numpy as np

from gradwire.errors import UsageError
from gradwire.participant.sharded import digest_of_parts
from gradwire.target.adapters import places_of
from gradwire.target.parameters import Places
from gradwire.target.part import layout_of_part
from gradwire_codecs import Replica
from gradwire_protocol.messages.checkpoint import CheckpointError
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_udp.files.checkpoints import CheckpointFile, in_names, newest, read

logger = logging.getLogger("gradwire.checkpoints")


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """What `load_checkpoint` found in a file."""

    path: Path
    """File of the checkpoint; of several masters, that of the first, as `versions` are."""
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


def load_checkpoint(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    target: object,
    *,
    run: str | None = None,
) -> LoadedCheckpoint:
    """Load the parameters that a master has saved into a model.

    They are those of a session after its last step, to the last bit. A checkpoint has no buffers,
    such as those of BatchNorm.

    Parameters
    ----------
    path : path, or sequence of path
        A checkpoint, or a folder, of which the newest undamaged checkpoint is loaded. Of several
        masters with a part of the parameters each, those of all of them, in the order in which
        workers name the masters.
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
    paths = [path] if isinstance(path, (str, PathLike)) else path
    if not paths:
        raise UsageError("load_checkpoint() of no paths: name the folder of each master")
    files = [_read(Path(each), run) for each in paths]
    for file, span in zip(files, _spans_of(files), strict=True):
        part = places.layout if len(files) == 1 else layout_of_part(places.layout, span)
        difference = model_of(file.checkpoint.layout).difference(part)
        if difference is not None:
            raise UsageError(
                f"{file.path}: the model differs from that of run {file.checkpoint.run!r}: "
                f"{difference}"
            )
    elements = sum(model_of(file.checkpoint.layout).elements for file in files)
    if elements != places.layout.elements:
        raise UsageError(
            f"the checkpoints have {elements} parameters together, and the model has "
            f"{places.layout.elements}: name the folder of each master"
        )
    _write([_model_in(file) for file in files], places)
    checkpoints = [file.checkpoint for file in files]
    first = checkpoints[0]
    return LoadedCheckpoint(
        path=files[0].path,
        run=first.run,
        elements=places.layout.elements,
        quantum=2.0**first.quantum_exponent,
        versions=dict(first.versions),
        updates=sum(each.updates for each in checkpoints),
        finished=all(each.finished for each in checkpoints),
        digest=f"{digest_of_parts([each.digest for each in checkpoints]):016x}",
    )


def _spans_of(files: Sequence[CheckpointFile]) -> list[slice]:
    """Return which elements of the model each file has, one behind the other."""
    sizes = [model_of(file.checkpoint.layout).elements for file in files]
    return list(starmap(slice, pairwise(accumulate(sizes, initial=0))))


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


def _model_in(file: CheckpointFile) -> Replica:
    """Return the replica without what a mode has behind the parameters."""
    replica = _replica_of(file)
    elements = model_of(file.checkpoint.layout).elements
    return Replica(replica.values[:elements], replica.quantum_exponent)


def _write(replicas: Sequence[Replica], places: Places) -> None:
    """Write replicas, one behind the other, to tensors one by one: it takes no copy of them all."""
    left = list(replicas)
    at = 0
    for tensor, write in zip(places.layout.tensors, places.writers, strict=True):
        parameters = np.empty(tensor.elements, np.float32)
        done = 0
        while done < tensor.elements:
            replica = left[0]
            values = replica.values[at : at + tensor.elements - done]
            part = Replica(values, replica.quantum_exponent)
            part.write_parameters(parameters[done : done + len(values)])
            done, at = done + len(values), at + len(values)
            if at == len(replica):
                left, at = left[1:], 0
        if tensor.elements:
            write(parameters)
