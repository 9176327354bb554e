"""The demo's text, as numbers: the source code of Python's standard library, some ten megabytes.

It takes numpy alone; examples without torch train on it, too.
"""

import sysconfig
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

VOCABULARY: Final = 128
"""Characters are ASCII codes; all others become question marks."""

HELD_OUT_EVERY: Final = 20
"""One of this many modules is held out for evaluation."""


def load_text() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the text for training and the modules that are held out, as character codes."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(p for p in library.glob("*.py") if p.is_file())
    packages = ("asyncio", "concurrent", "email", "http", "json", "logging", "unittest", "xml")
    for package in packages:
        modules += sorted((library / package).rglob("*.py"))
    texts = [m.read_text(encoding="utf-8", errors="replace") for m in modules]
    held_out = "".join(texts[::HELD_OUT_EVERY])
    training = "".join(t for i, t in enumerate(texts) if i % HELD_OUT_EVERY)
    return _codes(training), _codes(held_out)


def _codes(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


class Batches:
    """Random windows of a text: `batch` at a time, of `context` characters and the next one."""

    def __init__(
        self, codes: npt.NDArray[np.uint8], *, batch: int, context: int, seed: int
    ) -> None:
        self._codes = codes
        self._batch = batch
        self._window = np.arange(context + 1)
        self._random = np.random.default_rng(seed)

    def next(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return inputs and, one character on, targets; both of shape (batch, context)."""
        starts = self._random.integers(0, len(self._codes) - len(self._window), self._batch)
        windows = self._codes[starts[:, None] + self._window].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]
