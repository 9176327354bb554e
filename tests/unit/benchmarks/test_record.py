"""The file of figures: which runs write which lines, and when a figure is old."""

import subprocess
from dataclasses import replace
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import command
from benchmarks.commit import DIRTY, commit_of
from benchmarks.figures import Figure, Origin, at_most
from benchmarks.record import differs, is_old, read, record, table, without_marks
from benchmarks.registry import BENCHMARKS, Benchmark

CODE = "code.py"

ORIGIN = Origin(commit="57c88a2", quick=False, machine="2 x AMD EPYC", date="2026-11-29",
                command="python tests/benchmarks codec", load=1.5)  # fmt: skip


class Invented(Benchmark):
    """One whose module is no file; what it measures is."""

    @property
    def module(self) -> Any:
        return SimpleNamespace(
            FULL=None, QUICK=None, run=lambda _: [figure(self.module_name)], with_options=None
        )

    @property
    def has_keyless_form(self) -> bool:
        return True

    def plan(self, **_: bool) -> None:
        return None

    def with_options(self, plan: Any, arguments: Any) -> Any:
        return plan


INVENTED = {name: Invented(name, (CODE,)) for name in ("first", "second")}


def figure(name: str, value: float = 1.0) -> Figure:
    return at_most(name, value, "s", "rival", 2.0, aim=1.3, runs=9)


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True)


def commit(folder: Path, code: str) -> str:
    (folder / CODE).write_text(code)
    git(folder, "add", CODE)
    git(folder, "commit", "-m", code)
    return commit_of(folder).removesuffix(DIRTY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of figures in a checkout."""
    if which("git") is None:
        pytest.skip("needs git")
    git(tmp_path, "init")
    commit(tmp_path, "before")
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs" / "figures.jsonl"


def run(file: Path, *arguments: str) -> list[str]:
    """Run benchmarks; return which commands there are figures of."""
    assert command.main(arguments, INVENTED, file) == 0
    return [line["command"].removeprefix("python tests/benchmarks ") for line in read(file)]


def test_a_run_replaces_its_own_figures_and_leaves_the_others(file: Path) -> None:
    assert run(file, "second") == ["second"]
    assert run(file, "all") == ["first", "second"]
    assert run(file, "first", "--no-keys") == ["first", "first --no-keys", "second"]

    git(file.parent, "add", file.name)
    later = commit(file.parents[1], "after")

    assert run(file, "second") == ["first", "first --no-keys", "second"]
    assert [line["commit"] == later for line in read(file)] == [False, False, True]


def test_quick_runs_and_those_with_options_of_their_own_write_nothing(file: Path) -> None:
    assert run(file, "first", "--quick") == []
    assert run(file, "first", "--runs", "3") == []


def test_nothing_is_written_of_code_that_is_in_no_commit(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parents[1] / CODE).write_text("changed")

    assert run(file, "first") == []
    assert "first: not kept" in capsys.readouterr().err


def test_code_differs_from_that_of_a_commit_once_it_is_changed_and_no_longer(file: Path) -> None:
    folder = file.parents[1]
    measured = commit_of(folder)

    assert differs(file.parent, measured, [CODE]) is False
    commit(folder, "after")
    assert differs(file.parent, measured, [CODE]) is True
    assert differs(file.parent, measured, ["another.py"]) is False
    assert differs(file.parent, "0123456", [CODE]) is None, "as in a shallow clone"


def test_what_is_no_checkout_differs_from_nothing_and_has_no_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"

    assert differs(tmp_path, "HEAD", [CODE]) is None
    assert record(file, "first", [CODE], [figure("time")], ORIGIN) is False
    assert not file.exists()


def lines_of(file: Path, origin: Origin) -> Any:
    committed = replace(origin, commit=commit_of(file.parent))
    assert record(file, "codec", [CODE], [figure("pass"), figure("memory", 4.0)], committed)
    return read(file)


def test_a_table_has_the_chosen_figures_with_their_verdicts(file: Path) -> None:
    lines = lines_of(file, ORIGIN)

    assert "| pass | 1 s (0.5x) | rival: 2 | ≤ 1.3x: met |" in table("figures codec", lines)
    assert "| memory | 4 s (2x) | rival: 2 | ≤ 1.3x: **missed** |" in table("figures codec", lines)
    for part in ("memory", "memory: rival"):
        assert "pass" not in table(f"figures codec; {part}", lines)
    with pytest.raises(ValueError, match="codec --no-keys"):
        table("figures codec --no-keys", lines)


def test_a_table_says_where_its_figures_are_from_and_whether_the_machine_was_busy(
    file: Path,
) -> None:
    quiet = table("figures codec", lines_of(file, ORIGIN))
    busy = table("figures codec", lines_of(file, replace(ORIGIN, load=4.7)))

    named = (commit_of(file.parent), ORIGIN.date, ORIGIN.machine)
    assert all(each in quiet for each in named)
    assert "Load" not in quiet
    assert "Load 4.7" in busy


def test_old_figures_are_marked_and_the_table_is_the_same_but_for_the_marks(file: Path) -> None:
    lines = lines_of(file, ORIGIN)

    marked = table("figures codec", lines, old=lambda line: line["figure"] == "pass")

    assert "| pass † |" in marked
    assert "| memory |" in marked
    assert without_marks(marked) == table("figures codec", lines, old=lambda _: False)


@pytest.mark.parametrize("commit", ["0123456", "unknown"])
def test_nothing_is_old_where_its_commit_is_missing(commit: str) -> None:
    assert is_old({"benchmark": "codec", "commit": commit}) is False


def test_every_benchmark_measures_files_that_are_there() -> None:
    missing = [
        path
        for benchmark in BENCHMARKS.values()
        for path in benchmark.measured
        if not (Path(__file__).parents[3] / path).exists()
    ]

    assert missing == []


def test_what_is_kept_are_full_figures_of_benchmarks_that_are_there() -> None:
    lines = read()

    assert {line["benchmark"] for line in lines} <= set(BENCHMARKS)
    assert not any(line["quick"] or line["commit"].endswith(DIRTY) for line in lines)
    named = [(line["command"], line["figure"], line["rival"], line["aim"]) for line in lines]
    assert len(named) == len(set(named))
