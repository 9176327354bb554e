"""The methods that `time-to-loss` compares, by the names that its workers know them by."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.defaults.member import DDP
from benchmarks.programs import TESTS
from benchmarks.slowlink_methods import FP16, POWER_SGD

EVERY: Final = 30
"""Steps of a round, of those methods that have rounds of many."""

MODES: Final = (
    "sharing",
    "synchronous",
    "averaging",
    f"diloco(every={EVERY})",
    f"diloco(every={EVERY}, streams=3)",
    f"diloco(every={EVERY}, sparse=1/64)",
    "diloco(sparse=1/64)",
    "central",
)
"""gradwire's, as text."""

TORCHFT: Final = "torchft diloco"
SPARSE_LOCO: Final = "sparseloco"
SPARSE_LOCO_SENDERS: Final = "sparseloco over senders"

RIVALS: Final = (DDP, FP16, *POWER_SGD, TORCHFT, SPARSE_LOCO, SPARSE_LOCO_SENDERS)

METHODS: Final = (*MODES, *RIVALS)

_TORCHFT_FOLDER: Final = TESTS.parent / ".cache" / "torchft"
"""An environment of its own for what torchft takes along."""


@cache
def torchft_path() -> str | None:
    """Return where to import torchft from in addition; None where it is not installed.

    That is ``""`` where it is installed beside gradwire. ``python -m venv .cache/torchft`` and
    ``PYTHONPATH=FOLDER .cache/torchft/bin/pip install torchft==0.2.0``, with the folder that torch
    is installed in, make an environment that takes torch from there.
    """
    if find_spec("torchft") is not None:
        return ""
    for folder in _TORCHFT_FOLDER.glob("lib/python*/site-packages"):
        if (folder / "torchft").is_dir() and folder.parent.name == Path(os.__file__).parent.name:
            return str(folder)
    return None


def is_there(method: str) -> bool:
    """Return whether a method can be tried here."""
    return method != TORCHFT or torchft_path() is not None
