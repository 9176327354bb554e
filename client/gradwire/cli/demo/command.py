"""``gradwire demo``: the command, which takes a minute or two."""

import importlib.util
import json as json_text
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from gradwire.cli.launch.local_master import local_master
from gradwire.cli.launch.processes import exit_on_signals
from gradwire.errors import GradwireError, UsageError
from gradwire_udp.files.keys import write_key

STEPS: Final = 500
DENSITY: Final = 0.003
WORKERS: Final = 4
PICTURE: Final = Path("gradwire-demo.png")


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

    exit_on_signals()
    began = time.monotonic()
    with TemporaryDirectory(prefix="gradwire-demo-") as name:
        files = [Path(name, f"worker {rank}") for rank in range(workers)]
        alone = Path(name, "worker alone")
        with local_master() as master:
            typer.echo(f"master at {master.address}, {workers} workers", err=True)
            common = {"GRADWIRE_MASTER": master.address, "WORLD_SIZE": str(workers)}
            environs = []
            for rank in range(workers):
                key_file = Path(name, f"{rank}.key")
                write_key(key_file, master.key(f"rank-{rank}").format() + "\n")
                environs.append({**common, "RANK": str(rank), "GRADWIRE_KEY_FILE": str(key_file)})
            _train(files, [str(steps), str(density)], environs)
        typer.echo("one worker alone, for comparison", err=True)
        _train([alone], [str(steps)], [{}])
        found, single = [read(file) for file in files], read(alone)
    result = {**judge(found, single), "seconds": time.monotonic() - began}
    draw(found, single, result, picture)
    typer.echo(f"{table(result)}\n{'picture':<42} {picture}")
    if json is not None:
        json.write_text(json_text.dumps(result) + "\n", encoding="utf-8")


def _train(files: list[Path], options: list[str], environs: list[dict[str, str]]) -> None:
    """Run a worker for each file that it is to write, and wait for all of them."""
    program = [sys.executable, "-m", "gradwire.cli.demo.train", str(os.getpid())]
    processes = [
        subprocess.Popen(  # nosec B603
            [*program, str(file), *options], env=os.environ | {"OMP_NUM_THREADS": "1"} | environ
        )
        for file, environ in zip(files, environs, strict=True)
    ]
    try:
        for file, process in zip(files, processes, strict=True):
            if process.wait():
                raise GradwireError(f"{file.name} ended with status {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
