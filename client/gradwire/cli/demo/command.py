"""``gradwire demo``: the command, which takes a minute or two."""

import asyncio
import importlib.util
import json as json_text
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from gradwire.cli.run import Launcher
from gradwire.errors import UsageError

STEPS: Final = 500
DENSITY: Final = 0.003
WORKERS: Final = 4
PICTURE: Final = Path("gradwire-demo.png")

TRAIN: Final = (sys.executable, "-m", "gradwire.cli.demo.train")


def demo(
    *,
    workers: Annotated[
        int, typer.Option("-n", "--workers", min=2, max=32, help="Worker processes.")
    ] = WORKERS,
    steps: Annotated[int, typer.Option(min=10, help="Training steps of each worker.")] = STEPS,
    density: Annotated[
        float,
        typer.Option(min=1e-5, max=0.5, help="Fraction of the parameters that one update changes."),
    ] = DENSITY,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the result as JSON.")
    ] = None,
    picture: Annotated[Path, typer.Option(metavar="FILE", help="File for the picture.")] = PICTURE,
) -> None:
    """Train a character transformer with several worker processes, over real UDP.

    A master and the workers run on this machine. Then a single worker trains for as many steps, and
    both results are evaluated on held-out text. Needs torch and matplotlib: pip install
    '.[demo]' in a checkout.
    """
    if not all(map(importlib.util.find_spec, ("torch", "matplotlib"))):
        raise UsageError("the demo needs torch and matplotlib: pip install '.[demo]' in a checkout")
    for path in (json or picture, picture):
        if not path.resolve().parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {path.resolve().parent}")
    from gradwire.cli.demo.report import draw, judge, read, table

    began = time.monotonic()
    with TemporaryDirectory(prefix="gradwire-demo-") as folder:
        files = [Path(folder, str(rank)) for rank in range(workers)]
        launcher = Launcher([*TRAIN, folder, str(steps), str(density)], workers, steps=steps)
        _run(launcher, launcher.run_with_master("127.0.0.1:0", "127.0.0.1:0", None))
        typer.echo("one worker alone, for comparison", err=True)
        alone = Launcher([*TRAIN, folder, str(steps)], 1)
        _run(alone, alone.run("", [None]))
        found, single = [read(file) for file in files], read(Path(folder, "alone"))
    result = {**judge(found, single), "seconds": time.monotonic() - began}
    draw(found, single, result, picture)
    typer.echo(f"{table(result)}\n{'picture':<42} {picture}")
    if json is not None:
        json.write_text(json_text.dumps(result) + "\n", encoding="utf-8")


def _run(launcher: Launcher, work: Coroutine[Any, Any, None]) -> None:
    """Run workers to their end; leave with the exit status of one that fails."""
    status = asyncio.run(launcher.supervise(work))
    if status:
        raise typer.Exit(status)
