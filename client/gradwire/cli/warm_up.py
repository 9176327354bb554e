"""``gradwire warm-up``: compiles the codec's kernels before anything waits for them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated, Final

import typer

from gradwire.errors import UsageError

NATIVE: Final = "native"
GENERIC: Final = "generic"

MACHINE_CODE: Final = "*.nb[ci]"
"""Pattern of numba's files."""

PROGRAM: Final = (
    "from gradwire_codecs.warm_up import warm_up, warm_up_optimizers, warm_up_rest; "
    "warm_up(); warm_up_rest(); warm_up_optimizers()"
)
"""Compiles also what only some runs need: an image may be read-only."""


def warm_up(
    *,
    system: Annotated[
        bool,
        typer.Option(
            "--system",
            help="For all users of this Python, in its folder share/gradwire/kernels. Images with "
            "a read-only root need it.",
        ),
    ] = False,
    cpu: Annotated[
        str,
        typer.Option(
            metavar="CPU",
            help="For which processors: 'native' for this one, 'generic' for any since about 2015 "
            "(x86-64-v3; any ARM), or a name that LLVM knows. Code for other processors needs "
            "--system.",
        ),
    ] = NATIVE,
) -> None:
    """Compile what gradwire needs, so that no start has to wait for it.

    It takes some ten seconds, once for each version, Python and kind of processor. Without it, the
    first start on a machine does the same.
    """
    # Imported here, not above: it brings numba along.
    from gradwire_codecs.kernels.compiled import cache_folder, portable_name, prepared_folder

    if cpu != NATIVE and not system:
        raise UsageError(f"--cpu {cpu} without --system: a user's own code is for this processor")
    name = portable_name() if cpu == GENERIC else cpu
    processor = {} if cpu == NATIVE else {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
    began = monotonic()
    if system:
        folder = prepared_folder()
        with TemporaryDirectory(prefix="gradwire-") as made:
            _compile({"NUMBA_CACHE_DIR": made, **processor})
            _install(Path(made), Path(folder))
    else:
        own = cache_folder()
        if own is None:
            raise UsageError(
                "no folder for machine code can be written to: set NUMBA_CACHE_DIR to one, or pass "
                "--system as the owner of this Python"
            )
        folder = own
        _compile({})
    what = "this processor" if cpu == NATIVE else f"processors of kind {name}"
    typer.echo(f"ready for {what} in {folder}, after {monotonic() - began:.1f} s")


def _compile(environ: Mapping[str, str]) -> None:
    """Compile in a process of its own: numba reads these variables when it is imported."""
    typer.echo("compiling, which takes some ten seconds where nothing is compiled yet", err=True)
    done = subprocess.run(  # nosec B603
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise UsageError(f"compiling failed: {last[0]}")


def _install(made: Path, folder: Path) -> None:
    """Move files to a folder that every user can read."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in made.rglob(MACHINE_CODE):
            new = folder / f".{path.name}.{os.getpid()}"
            shutil.copyfile(path, new)
            new.chmod(0o644)
            new.replace(folder / path.name)
    except OSError as error:
        raise UsageError(
            f"{folder}: {error.strerror}: run it as the owner of this Python, or without --system"
        ) from None
