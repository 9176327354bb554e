"""What is measured once and kept: a task by a method over a link, in a file of JSON lines."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, Self

from benchmarks.time_to_loss.methods import MODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training."""

    task: str
    method: str
    link: float
    """Mbit/s."""
    rate: float
    """The learning rate."""
    seconds: float
    step_seconds: float
    workers: int
    seed: int
    keys: bool

    @property
    def is_ours(self) -> bool:
        """Whether it is one of gradwire's modes."""
        return self.method in MODES

    @property
    def steps(self) -> int:
        """How many a worker makes that waits for nothing."""
        return round(self.seconds / self.step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    seconds: Sequence[float]
    """When the model was looked at."""
    losses: Sequence[float]
    """On what is held out; infinite from where the training has diverged."""
    megabytes: Sequence[float]
    """That the link had carried until then."""
    steps: int
    """Of the first worker."""
    late: int
    """Of these, with a forward pass that took longer than it should: the machine was too slow."""

    @property
    def loss(self) -> float:
        """That at the end."""
        return self.losses[-1]

    def to_plain(self) -> dict[str, Any]:
        """Return it as values that JSON has."""
        losses = [loss if isfinite(loss) else None for loss in self.losses]
        return {**asdict(self), "losses": losses}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Return what `to_plain` has described."""
        losses = [inf if loss is None else loss for loss in plain["losses"]]
        return cls(**{**plain, "losses": losses})


class Cells:
    """Those that are measured already, and the file that they are in.

    A line is written when a training has ended, so that a run that is broken off is gone on with.

    Parameters
    ----------
    path : Path
        Need not exist; neither does its folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[Cell, Outcome] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                plain = json.loads(line)
                self._found[Cell(**plain["cell"])] = Outcome.from_plain(plain["outcome"])

    def __contains__(self, cell: Cell) -> bool:
        """Return whether it is known what came of one."""
        return cell in self._found

    def outcome(self, cell: Cell) -> Outcome:
        """Return what came of one.

        Raises
        ------
        KeyError
            If it is not known.
        """
        return self._found[cell]

    def add(self, cell: Cell, outcome: Outcome, commit: str) -> None:
        """Keep what came of one, with the commit that it was measured with."""
        self._found[cell] = outcome
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = {"cell": asdict(cell), "outcome": outcome.to_plain(), "commit": commit}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
