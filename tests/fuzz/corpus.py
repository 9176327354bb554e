"""The corpus: inputs of each target that are checked in, and those found since.

What is checked in is small and made to be small: `merge` keeps, of everything found, the shortest
inputs that together reach what all of them reach. It is replayed by the tests, everywhere.
"""

import hashlib
import shutil
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol, cast

REPOSITORY: Final = Path(__file__).parents[2]
CHECKED_IN: Final = Path(__file__).parent / "corpus"
CACHE: Final = REPOSITORY / ".cache" / "fuzz"

TARGETS: Final = tuple(
    sorted(file.stem for file in (Path(__file__).parent / "targets").glob("[a-z]*.py"))
)

BYTES_MAX: Final = 200_000
"""Of all that is checked in."""

TARGET_BYTES_MAX: Final = BYTES_MAX // len(TARGETS)


class Target(Protocol):
    """What a module in `targets` has."""

    BYTES_MAX: int
    """Longest input."""

    @staticmethod
    def check(data: bytes) -> None:
        """Let a parser read an input; raise what it must not raise, or that it broke a promise."""

    @staticmethod
    def seeds() -> Iterable[bytes]:
        """Return inputs to begin with, made of what honest peers send."""


def module_of(name: str) -> str:
    """Return the module of a target."""
    return f"fuzz.targets.{name}"


def load(name: str) -> Target:
    """Return a target."""
    return cast(Target, import_module(module_of(name)))


def inputs(name: str) -> list[Path]:
    """Return the inputs of a target that are checked in."""
    return sorted((CHECKED_IN / name).iterdir())


def keep(folder: Path, contents: Iterable[bytes]) -> None:
    """Write inputs to a folder, named as libFuzzer does: the same one twice is one file."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in contents:
        name = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        (folder / name).write_bytes(data)


def smallest(candidates: Iterable[bytes], bytes_max: int) -> list[bytes]:
    """Return the shortest of some inputs, as many as fit."""
    kept, size = [], 0
    for data in sorted(candidates, key=lambda data: (len(data), data)):
        size += len(data)
        if size > bytes_max:
            break
        kept.append(data)
    return kept


def launcher(folder: Path, name: str) -> Path:
    """Write the program that libFuzzer starts to merge: it takes its first argument for one."""
    program = folder / f"fuzz-{name}"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m fuzz.child {module_of(name)} "$0" "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


def replace(name: str, merged: Path) -> None:
    """Check in the seeds of a target and, of what a merge has left, as much as there is room."""
    contents = {file.read_bytes() for file in merged.iterdir()}
    seeds = smallest(load(name).seeds(), TARGET_BYTES_MAX)
    left = TARGET_BYTES_MAX - sum(map(len, seeds))
    with TemporaryDirectory(dir=CACHE) as temporary:
        folder = Path(temporary) / name
        keep(folder, [*seeds, *smallest(contents - set(seeds), left)])
        shutil.rmtree(CHECKED_IN / name, ignore_errors=True)
        shutil.move(folder, CHECKED_IN / name)
