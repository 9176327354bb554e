"""The command that runs benchmarks: what it lists and refuses, and what one that fails leaves."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import command
from benchmarks.commit import commit_of
from benchmarks.figures import Figure, at_most, beside
from benchmarks.registry import BENCHMARKS, Benchmark


@dataclass(frozen=True, kw_only=True)
class Plan:
    runs: int = 9
    keys: bool = True


@dataclass(frozen=True)
class Invented(Benchmark):
    """One whose module is no file."""

    measure: Callable[[Plan], list[Figure]]

    @property
    def module(self) -> Any:
        return SimpleNamespace(FULL=Plan(), QUICK=Plan(runs=1), run=self.measure)


def cost(plan: Plan) -> list[Figure]:
    return [
        at_most(f"cost, keys {plan.keys}", 1.0, "s", "rival", 2.0, aim=1.3, runs=plan.runs),
        beside("nothing to compare with", 1.0, "s", "rival", 0.0, runs=plan.runs),
    ]


def fail(plan: Plan) -> list[Figure]:
    raise RuntimeError("the cable is out")


INVENTED = {
    "first": Invented("none", cost),
    "broken": Invented("none", fail),
    "last": Invented("none", cost),
}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_that_fails_stops_no_other_and_is_named_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "folder" / "figures.jsonl"

    status = command.main(["all", "--json", str(file)], INVENTED)

    shown = capsys.readouterr()
    assert status == 1
    assert "RuntimeError: the cable is out" in shown.err
    assert shown.err.splitlines()[-1] == "failed: broken"
    assert [line["figure"] for line in lines_of(file)] == 2 * [
        "cost, keys True",
        "nothing to compare with",
    ]


def test_full_figures_have_verdicts_and_quick_ones_say_that_they_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for name, options in (("full", []), ("quick", ["--quick", "--no-keys"])):
        file = tmp_path / name
        assert command.main(["first", "--json", str(file), *options], INVENTED) == 0
        shown[name] = capsys.readouterr().out

    [full, alone], [quick, _] = lines_of(tmp_path / "full"), lines_of(tmp_path / "quick")
    assert (full["met"], full["quick"], full["runs"]) == (True, False, 9)
    assert (quick["met"], quick["quick"], quick["runs"]) == (None, True, 1)
    assert quick["figure"] == "cost, keys False"
    assert full["commit"] == quick["commit"] == commit_of(Path(__file__).parent)
    assert alone["ratio"] is None
    assert "met" in shown["full"]
    assert "met" not in shown["quick"]
    assert "not to be quoted" in shown["quick"]


@pytest.mark.parametrize(
    ("options", "keys"), [([], True), (["--no-keys"], False), (["--keys"], True)]
)
def test_it_has_keys_unless_told_otherwise(options: list[str], keys: bool, tmp_path: Path) -> None:
    file = tmp_path / "figures"

    assert command.main(["last", "--json", str(file), *options], INVENTED) == 0

    costs = [line for line in lines_of(file) if line["rival_value"]]
    assert [line["figure"] for line in costs] == [f"cost, keys {keys}"]
    assert {line["benchmark"] for line in costs} == {"last"}


def test_all_are_listed_with_what_each_says_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHMARKS)
    assert all(len(line.split()) > 5 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nothing"], "nothing"),
        ([], "all"),
        (["first", "--quick", "--curves", "docs"], "--curves"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments, INVENTED)

    assert ended.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]
    assert not Path("docs", "first.png").exists()


def test_keys_are_refused_where_they_make_no_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.main(["transport", "--no-keys"])

    assert "transport" in capsys.readouterr().err


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_full_plan_and_a_smaller_one(name: str) -> None:
    module = BENCHMARKS[name].module

    assert isinstance(module.FULL, module.Plan)
    assert isinstance(module.QUICK, module.Plan)
    assert module.Plan() == module.FULL
    assert module.FULL != module.QUICK
