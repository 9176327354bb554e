"""``gradwire estimate``: what it prints and refuses."""

import json
import re
from pathlib import Path

import pytest
from typer import rich_utils

from gradwire.cli.app import EXIT_USAGE, main
from gradwire.cli.estimate.script import STEPS, WARM_UP, figures_of
from gradwire.errors import UsageError
from support.wording import naming

USUAL = ("estimate", "--step-seconds", "100ms", "--parameters", "14.6M", "--link", "100Mbit")


def test_it_prints_the_verdict_and_a_line_for_each_formula(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*USUAL, "--workers", "4"]) == 0

    verdict, *lines = capsys.readouterr().out.splitlines()
    assert verdict.startswith("Worth it: 4 workers")
    assert all(line.count(" = ") == 3 for line in lines)


def test_json_has_the_inputs_and_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--mode", "averaging(every=5)", "--rtt", "20ms", "--density", "0.01", "--json"]

    assert main([*USUAL, *options]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["verdict"].startswith("Not worth it: 8 workers")
    assert (found["parameters"], found["training"], found["link"]) == (14_600_000, 0.1, 1e8)
    assert (found["rtt"], found["density"], found["every"]) == (0.02, 0.01, 5)
    assert found["step"] > found["computing"] > 0.1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["estimate", "--parameters", "1M"], ["--step-seconds", "--script"]),
        ([*USUAL, "--", "--epochs", "1"], ["'--epochs'", "--script"]),
        ([*USUAL, "--mode", "gossip"], ["gossip"]),
        ([*USUAL, "--rtt", "soon"], ["--rtt"]),
    ],
)
def test_wrong_usage_is_named(
    arguments: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == EXIT_USAGE

    assert re.search(naming(*named), capsys.readouterr().err, re.DOTALL)


def test_there_has_to_be_such_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", 1000)  # no line break within the name

    assert main(["estimate", "--script", str(tmp_path / "train.py")]) == EXIT_USAGE

    assert "train.py" in capsys.readouterr().err


def test_the_median_step_counts_without_the_first_ones() -> None:
    slow_at_first = [9.0] * WARM_UP + [0.1] * (STEPS - WARM_UP - 1) + [5.0]

    assert figures_of({"parameters": 7, "seconds": slow_at_first}) == (7, 0.1)
    assert figures_of({"parameters": 7, "seconds": [9.0, 0.2]}) == (7, 0.2)


@pytest.mark.parametrize("found", [{}, {"parameters": 7, "seconds": [0.1]}])
def test_a_script_with_too_few_steps_is_told_what_is_missing(found: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"session\.step\(\)"):
        figures_of(found)
