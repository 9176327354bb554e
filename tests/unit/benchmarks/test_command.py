"""The command that runs benchmarks: what it lists and refuses, and what one that fails leaves."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import command
from benchmarks.commit import commit_of
from benchmarks.figures import Figure, at_most, beside
from benchmarks.registry import Benchmark


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


@dataclass(frozen=True)
class Tunable(Invented):
    """One with an option of its own."""

    @property
    def module(self) -> Any:
        def with_options(plan: Plan, arguments: Sequence[str]) -> Plan:
            assert arguments[0] == "--runs"
            return replace(plan, runs=int(arguments[1]))

        return SimpleNamespace(**vars(super().module), with_options=with_options)


def cost(plan: Plan) -> list[Figure]:
    return [
        at_most(f"cost, keys {plan.keys}", 1.0, "s", "rival", 2.0, aim=1.3, runs=plan.runs),
        beside("nothing to compare with", 1.0, "s", "rival", 0.0, runs=plan.runs),
    ]


def fail(plan: Plan) -> list[Figure]:
    raise RuntimeError("the cable is out")


INVENTED = {
    "first": Invented("none", (), cost),
    "broken": Invented("none", (), fail),
    "last": Invented("none", (), cost),
}

WITH_TUNABLE = INVENTED | {"tunable": Tunable("none", (), cost)}


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


def test_one_that_runs_alone_has_options_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "figures"

    assert command.main(["tunable", "--json", str(file), "--runs", "3"], WITH_TUNABLE) == 0

    assert lines_of(file)[0]["runs"] == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nothing"], "nothing"),
        ([], "all"),
        (["first", "--quick", "--curves", "docs"], "--curves"),
        (["first", "--runs", "3"], "--runs"),
        (["tunable", "first", "--runs", "3"], "--runs"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments, WITH_TUNABLE)

    assert ended.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]
    assert not Path("docs", "first.png").exists()
