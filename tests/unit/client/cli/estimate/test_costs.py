"""Costs, kept in a file and read again."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from gradwire.cli.estimate.costs import Costs
from gradwire.errors import UsageError
from support.estimating import COSTS
from support.wording import naming


@pytest.mark.parametrize("whole", [True, False])
def test_costs_are_read_from_an_estimate_or_from_their_own_object(
    tmp_path: Path, whole: bool
) -> None:
    found = asdict(COSTS)
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"limit": "encode", "costs": found} if whole else found))

    assert Costs.read(file) == COSTS


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ("Expecting value",)),
        ("[1]", ("no object",)),
        ('{"costs": 3}', ("no object",)),
        ("{}", ("step_seconds",)),
        (json.dumps(asdict(COSTS) | {"apply_seconds": -1}), ("apply_seconds=-1", 0, 1)),
        (json.dumps(asdict(COSTS) | {"apply_seconds": "1"}), ("apply_seconds='1'",)),
        (json.dumps(asdict(COSTS) | {"step_seconds": float("nan")}), ("step_seconds=nan",)),
    ],
)
def test_a_file_with_something_else_is_refused(
    tmp_path: Path, text: str, named: tuple[object, ...]
) -> None:
    file = tmp_path / "costs.json"
    file.write_text(text)

    with pytest.raises(UsageError, match=naming(file, *named)):
        Costs.read(file)


def test_scaling_changes_the_codecs_part_alone() -> None:
    scaled = COSTS.scaled_to(encode=2.0, apply=None)

    assert scaled.encode_seconds_per_hit == 2 * COSTS.encode_seconds_per_hit
    assert scaled.pass_seconds_per_parameter == 2 * COSTS.pass_seconds_per_parameter
    assert scaled.apply_seconds == COSTS.apply_seconds
    assert scaled.network_seconds == COSTS.network_seconds
