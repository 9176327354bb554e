"""``python tests/benchmarks NAME...``: what gradwire costs and achieves, beside floors and rivals.

NAME ``all`` runs every benchmark; ``--list`` names them. Each prints a table. Every figure stands
beside a floor or a rival that was measured alternately with it, in the same run: absolute times
differ between machines and hours, ratios hold. An aim that is missed is printed as missed.

With ``--json``, each figure is also written as an object on a line of its own, as soon as its
benchmark has ended. ``--curves`` draws what the documentation shows. docs/figures.jsonl keeps the
figures of full runs for `make tables`, unless a benchmark ran with options of its own, or what it
measures is in no commit.

With ``--quick``, everything is tiny and takes seconds, to see that it still runs. The figures say
nothing and are marked so, no aim is met or missed, and drawings are made and thrown away.

Where one benchmark is named alone, other options are its own: ``time-to-loss --links 10``.

A benchmark that fails stops no other. Exit status: 0 all ran to their ends, 1 some failed, and are
named last, 2 usage.
"""

import argparse
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.commit import commit_of
from benchmarks.figures import Figure, Origin, machine, print_table
from benchmarks.record import COMMAND, record
from benchmarks.registry import BENCHMARKS, Benchmark

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How benchmarks run, and where what they measure goes."""

    quick: bool
    keys: bool
    """Whether masters and workers have keys, where that can be chosen."""
    commit: str
    json: Path | None
    curves: Path | None
    options: Sequence[str]
    """Of the one benchmark that runs, where it has any."""
    kept: Path | None
    """What documentation quotes."""


def main(
    arguments: Sequence[str] | None = None,
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
    kept: Path | None = None,
) -> int:
    """Run what was asked for, and keep figures in a file; return the exit status."""
    parser = _parser(benchmarks)
    given, others = parser.parse_known_args(arguments)
    if given.list:
        width = max(map(len, benchmarks))
        for name, benchmark in benchmarks.items():
            print(f"{name:{width}}  {benchmark.description}")
        return 0
    names = _names(parser, given, benchmarks)
    if others and not (len(names) == 1 and benchmarks[names[0]].has_options):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text("", encoding="utf-8")
    print(machine())
    if given.quick:
        print("A quick run shows what still runs; its figures are not to be quoted.")
    with _folder(given) as curves:
        output = Output(
            quick=given.quick,
            keys=given.keys is not False,
            commit=commit_of((kept or Path(__file__)).parent),
            json=given.json,
            curves=curves,
            options=others,
            kept=None if given.quick or others else kept,
        )
        failed = [name for name in names if not _ends_well(name, benchmarks[name], output)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _parser(benchmarks: Mapping[str, Benchmark]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{ALL}, {', '.join(benchmarks)}")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--quick", action="store_true", help="see that it runs, in seconds")
    parser.add_argument(
        "--keys",
        action=argparse.BooleanOptionalAction,
        help="whether masters and workers have keys, where that can be chosen; they have unless "
        "told otherwise, as users have them",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--curves", type=Path, metavar="FOLDER", help="draw rates as lines there")
    return parser


def _names(
    parser: argparse.ArgumentParser, given: argparse.Namespace, benchmarks: Mapping[str, Benchmark]
) -> list[str]:
    """Return what is to run; end with a message where that makes no sense."""
    unknown = [name for name in given.names if name not in (ALL, *benchmarks)]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(benchmarks)}")
    if not given.names:
        parser.error(f"say which: {ALL}, {', '.join(benchmarks)}")
    if given.quick and given.curves:
        parser.error("--quick measures nothing that may be shown: leave out --curves")
    if ALL in given.names:
        return list(benchmarks)
    if given.keys is not None:
        alike = [name for name in given.names if not benchmarks[name].has_keyless_form]
        if alike:
            parser.error(f"--keys and --no-keys make no difference to {', '.join(alike)}")
    return list(given.names)


@contextmanager
def _folder(given: argparse.Namespace) -> Iterator[Path | None]:
    """Have a folder for curves; those of a quick run are drawn to be thrown away."""
    if given.quick:
        with TemporaryDirectory() as folder:
            yield Path(folder)
        return
    if given.curves is not None:
        given.curves.mkdir(parents=True, exist_ok=True)
    yield given.curves


def _ends_well(name: str, benchmark: Benchmark, output: Output) -> bool:
    """Run a benchmark, and show what it measured; return whether it came to its end."""
    print(f"\n{name}: measuring", file=sys.stderr, flush=True)
    try:
        plan = benchmark.plan(quick=output.quick, keys=output.keys)
        if output.options:
            plan = benchmark.with_options(plan, output.options)
        # `all` measures the same as each one by itself.
        keyless = " --no-keys" if benchmark.has_keyless_form and not output.keys else ""
        origin = Origin.now(output.commit, f"{COMMAND} {name}{keyless}", quick=output.quick)
        figures = benchmark.run(plan)
        if figures:
            _show(name, figures, output, origin)
            if output.kept and not record(output.kept, name, benchmark.measured, figures, origin):
                print(f"{name}: not kept, what it measures is in no commit", file=sys.stderr)
            if output.curves is not None and benchmark.has_drawing:
                benchmark.draw(figures, output.curves, plan)
    except Exception:
        traceback.print_exc()
        return False
    return True


def _show(name: str, figures: list[Figure], output: Output, origin: Origin) -> None:
    print_table(name, figures, quick=output.quick)
    if output.json is not None:
        with output.json.open("a", encoding="utf-8") as file:
            for figure in figures:
                file.write(figure.to_json(name, origin) + "\n")
