"""Which GPUs a machine has."""

from pathlib import Path

import pytest

from gradwire.cli.run import visible_gpus


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0,1,2", ["0", "1", "2"]),
        (" GPU-8932f937 , 3 ", ["GPU-8932f937", "3"]),
        ("", []),
        ("-1", []),
        ("2,-1,3", ["2"]),  # CUDA takes those before the first that is none
    ],
)
def test_the_variable_says_which_there_are(value: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, tmp_path) == found


def test_without_it_the_driver_does(tmp_path: Path) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({}, tmp_path / "none") == []
