"""``gradwire estimate``, with costs from a file: what it says, and what it refuses."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gradwire.cli.app import EXIT_USAGE, main
from gradwire.cli.estimate.command import as_measured
from gradwire.cli.estimate.demands import demands
from gradwire.cli.estimate.measuring import Measured
from gradwire_codecs.policies.density import density_for
from support.estimating import COSTS, inputs
from support.wording import naming

USUAL = (
    "estimate", "--step-seconds", "100ms", "--parameters", "14.6M", "--link", "100Mbit",
    "--rtt", "20ms", "--workers", "16", "--master-link", "10Gbit", "--masters", "8",
    "--density", "0.01",
)  # fmt: skip


@pytest.fixture
def costs(tmp_path: Path) -> str:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(asdict(COSTS)), encoding="utf-8")
    return str(file)


def test_tables_say_what_is_short_and_what_would_fit(
    costs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*USUAL, "--costs", costs]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("Too slow for 16 workers at this density: use ")
    assert "Bottleneck: worker's link, down." in out
    (limit,) = (line for line in out.splitlines() if "<- limit" in line)
    assert "worker's link, down" in limit
    assert "target_density=" in out
    numbers = [line.split("│")[1].strip() for line in out.splitlines() if line.count("│") == 9]
    assert numbers == ["1", "2", "4", "8", "16", "32"]
    fits = re.findall(r"^│ +(\d+) │.*│ yes ", out, re.MULTILINE)
    slow = re.findall(r"^│ +(\d+) │.*│ no ", out, re.MULTILINE)
    most = int(re.match(r"Too slow for 16 workers at this density: use (\d+), or ", out)[1])  # type: ignore[index]
    assert max(map(int, fits)) <= most < min(map(int, slow)) <= 16


def test_a_training_that_scales_is_told_so(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--density", "0.0003", "--master-link", "1Gbit", "--workers", "4"]

    assert main([*USUAL, "--costs", costs, *options]) == 0

    out, _ = capsys.readouterr()
    assert out.startswith("Fast enough for 4 workers at this density: ")
    assert "Every update arrives as it was sent" in out
    assert re.search(r"^│ +4 │.*│ yes ", out, re.MULTILINE)
    assert "up to" in out


def rows_of(out: str, columns: int) -> list[list[str]]:
    """Return the cells of each row of tables with so many columns."""
    lines = (line for line in out.splitlines() if line.count("│") == columns + 1)
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def test_the_last_table_says_what_each_run_mode_costs(
    costs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--costs", costs, "--density", "0.0003", "--master-link", "1Gbit", "-n", "4"]

    assert main([*USUAL, *options]) == 0

    out, _ = capsys.readouterr()
    rows = rows_of(out, 9)
    assert [row[:3] for row in rows[:5]] == [
        ["sharing", "1", "-"],
        ["synchronous", "1", "8"],
        ["averaging", "16", "8"],
        ["averaging", "16", "4"],
        ["diloco", "64", "8"],
    ]
    assert rows[1][3:5] == ["31.3 MB", "2.8x"]
    linear = [float(row[-1].rstrip("%")) for row in rows]
    assert linear[0] == max(linear)
    assert "87.6 MB" in out  # with DDP


def test_one_mode_is_estimated_by_itself(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    mode = "averaging(every=5, bits=4)"

    assert main([*USUAL, "--costs", costs, "--mode", mode]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"{mode}: ")
    assert "7.3 MB a contribution" in out
    phases = [row[0] for row in rows_of(out, 3)]
    assert phases == ["encode", "upload", "mean", "download", "apply", "round trip"]
    assert [row[0] for row in rows_of(out, 7)] == ["1", "2", "4", "8", "16", "32"]
    assert "sharing" not in out


def test_the_mode_sharing_is_estimated_without_the_others(
    costs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*USUAL, "--costs", costs, "--mode", "sharing"]) == 0

    out, _ = capsys.readouterr()
    assert out.startswith("Too slow for 16 workers at this density: ")
    assert "averaging" not in out


def test_json_of_a_mode_is_that_of_the_table_and_can_be_taken_for_costs(
    costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*USUAL, "--costs", costs, "--json"]) == 0
    all_modes = {each["mode"]: each for each in json.loads(capsys.readouterr().out)["modes"]}
    file = tmp_path / "mode.json"

    assert main([*USUAL, "--costs", costs, "--mode", "averaging(bits=4)", "--json"]) == 0
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main([*USUAL, "--costs", str(file), "--mode", "averaging(bits=4)", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(file.read_text(encoding="utf-8"))
    assert all_modes["averaging(bits=4)"].items() <= found.items()
    assert [each["workers"] for each in found["sweep"]] == [1, 2, 4, 8, 16, 32]
    assert found["inputs"]["workers"] == found["workers"] == 16
    assert found["round_seconds"] == pytest.approx(sum(each["seconds"] for each in found["round"]))


@pytest.mark.parametrize("workers", [4, 16])
def test_unless_given_the_density_is_that_of_so_many_workers(
    workers: int, costs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [each for each in USUAL if each not in ("--density", "0.01")]

    assert main([*usual, "--costs", costs, "--workers", str(workers), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["inputs"]["density"] == density_for(workers)


def test_json_has_all_of_it_and_can_be_taken_for_costs(
    costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*USUAL, "--costs", costs, "--json"]) == 0
    first = capsys.readouterr().out
    file = tmp_path / "estimate.json"
    file.write_text(first, encoding="utf-8")

    assert main([*USUAL, "--costs", str(file), "--json"]) == 0

    found = json.loads(first)
    assert json.loads(capsys.readouterr().out) == found
    assert found["limit"] == max(found["resources"], key=lambda r: r["load"])["name"]
    assert found["verdict"].startswith("Too slow for 16 workers")
    assert found["fast_enough"] is False
    assert found["inputs"]["workers"] == 16
    assert found["linear_fraction"] == pytest.approx(found["speed_up"] / 16)
    assert [each["workers"] for each in found["sweep"]] == [1, 2, 4, 8, 16, 32]
    assert found["workers_max"] < 16


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--parameters 1M", ("--step-seconds",)),
        ("--step-seconds 1", ("--parameters",)),
        ("--step-seconds soon --parameters 1M", ("--step-seconds='soon'",)),
        ("--step-seconds 1 --parameters 1M --link 100", ("--link='100'",)),
        ("--step-seconds 1 --parameters 1M --density 2", ("--density=2", 1)),
        ("--step-seconds 1 --parameters 1M -n 0", ("--workers=0", 1)),
        ("--step-seconds 1 --parameters 1M --codec-threads 0", ("--codec-threads=0", 1)),
        ("--measure none.py", ("--measure='none.py'",)),
        ("--measure none.py --measure-seconds 0", ("--measure-seconds=0 s", 0)),
        ("--step-seconds 1 --parameters 1M train.py", ("--measure SCRIPT",)),
        ("--mode averaging(every=0)", ("averaging", "every", 1, 100000)),
        ("--mode often", ("mode 'often'", "averaging")),
    ],
)
def test_wrong_usage_names_value_and_limits(
    costs: str, options: str, named: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["estimate", "--costs", costs, *options.split()])

    out, err = capsys.readouterr()
    assert (status, out, err) == (EXIT_USAGE, "", naming(*named))


MEASURED = Measured(
    parameters=1_000_000, step_seconds=0.05, session_seconds=0.011, density=0.01,
    update_bytes=10_000, encode_seconds=0.004, apply_seconds=0.002, steps=100,
)  # fmt: skip


def test_what_a_run_has_measured_takes_the_place_of_what_kernels_say() -> None:
    given = inputs(parameters=1_000_000, density=0.01, workers=2)

    encode, apply, *_ = demands(as_measured(given, MEASURED))

    assert encode.seconds == pytest.approx(0.004 + 0.005)
    assert apply.seconds == pytest.approx(0.002)
    assert as_measured(given, MEASURED).update_bytes == pytest.approx(10_000)


def test_another_density_than_the_measured_one_is_reckoned_from_there() -> None:
    measured = replace(MEASURED, session_seconds=0.01, apply_seconds=None)
    sparser = as_measured(inputs(parameters=1_000_000, density=0.001, workers=2), measured)

    assert sparser.update_bytes < 2_000
    assert demands(sparser)[0].seconds < 0.009 + 0.0011
    assert sparser.costs.apply_seconds == COSTS.apply_seconds
