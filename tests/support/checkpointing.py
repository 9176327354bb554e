"""Checkpoints for tests: files of small models, and a writer that does as a test says."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gradwire_codecs import Replica
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.messages.checkpoint.format import Checkpoint, pieces_of
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_server.checkpoints.writer import Copy, Failed, Outcome, Written
from gradwire_udp.files.checkpoints import name_of

LAYOUT = Layout((Tensor("weights", (2, 3)), Tensor("bias", (1,))))
VALUES = np.arange(-3, 4, dtype=np.int32) * 2**20
VERSIONS = {0: 3, 2: 1}


def checkpoint_of(
    values: Int32Array = VALUES,
    *,
    run: str = "alpha",
    layout: Layout = LAYOUT,
    quantum_exponent: int = -24,
    versions: Mapping[int, int] | None = None,
    finished: bool = False,
    digest: int | None = None,
) -> Checkpoint:
    """Return what a checkpoint of these values says."""
    return Checkpoint(
        run=run,
        layout=layout,
        quantum_exponent=quantum_exponent,
        versions=VERSIONS if versions is None else versions,
        finished=finished,
        digest=Replica(values.copy()).digest() if digest is None else digest,
    )


def bytes_of(checkpoint: Checkpoint | None = None, values: Int32Array = VALUES) -> bytes:
    """Return the file of a checkpoint."""
    return b"".join(pieces_of(checkpoint or checkpoint_of(values), values.astype("<i4").tobytes()))


def written_to(folder: Path, number: int = 1, content: bytes | None = None) -> Path:
    """Write a file with the name of a checkpoint; return where it is."""
    path = folder / name_of("alpha", number, is_over=False)
    path.write_bytes(bytes_of() if content is None else content)
    return path


class ScriptedWriter:
    """Keeps the copies it is given; a test says what comes of the last one."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.busy = False
        self._outcome: Outcome | None = None

    def write(self, copy: Copy) -> None:
        assert not self.busy, "one at a time"
        self.busy = True
        self.copies.append(copy)

    def take_outcome(self) -> Outcome | None:
        outcome, self._outcome = self._outcome, None
        self.busy = self.busy and outcome is None
        return outcome

    def succeed(self, complaint: str = "") -> None:
        """Let what is under way be written."""
        name = name_of("alpha", len(self.copies), is_over=self.copies[-1].is_over)
        self._outcome = Written(name, 1_000, 2.0, 3e9, complaint)

    def fail(self, reason: str = "No space left on device") -> None:
        """Let what is under way not be written."""
        self._outcome = Failed(reason)
