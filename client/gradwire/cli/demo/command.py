"""``gradwire demo``: the command, which takes a minute or two."""

import importlib.util
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from gradwire.errors import UsageError

STEPS: Final = 500
DENSITY: Final = 0.003
WORKERS: Final = 4
NEEDS: Final = ("torch", "matplotlib")


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
    picture: Annotated[Path, typer.Option(metavar="FILE", help="File for the picture.")] = Path(
        "gradwire-demo.png"
    ),
) -> None:
    """Train a character transformer with several worker processes, over real UDP.

    A master and the workers run on this machine. Then a single worker trains for as many steps, and
    both results are evaluated on held-out text. Needs torch and matplotlib: pip install
    'gradwire[demo]'.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {' and '.join(missing)}: pip install 'gradwire[demo]'")
    for path in (json, picture):
        if path is not None and not path.resolve().parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {path.resolve().parent}")
    from gradwire.cli.demo.display import REFRESH_SECONDS, Display
    from gradwire.cli.demo.race import Progress, Race, run_all
    from gradwire.cli.demo.report import draw, judge, result_table, write_json

    messages = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="gradwire-demo-") as folder:
        race = Race(steps, density, Path(folder), [Progress(f"worker {i}") for i in range(workers)])
        with Display(race) as display:
            run_all(race, display.show, REFRESH_SECONDS)
        messages.print("evaluating on held-out text", highlight=False)
        result = judge(race)
    Console().print(result_table(result))
    draw(race, result, picture)
    messages.print(f"picture: {picture}", highlight=False)
    if json is not None:
        write_json(result, json)
