"""Which GPUs a machine has, and which one each worker sees."""

from pathlib import Path

import pytest

from gradwire.cli.launch.gpus import about_gpus, visible_gpus
from gradwire.errors import UsageError
from support.wording import naming


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


def test_the_option_is_offered_where_there_are_several() -> None:
    assert about_gpus(["0", "1"], 2, one_each=False) == naming("cuda:LOCAL_RANK", "--one-gpu-each")
    assert about_gpus(["0"], 2, one_each=False) is None
    assert about_gpus(["0", "1"], 1, one_each=False) is None
    assert about_gpus([], 4, one_each=False) is None


def test_without_a_gpu_none_can_be_given() -> None:
    with pytest.raises(UsageError, match=naming("--one-gpu-each", "CUDA_VISIBLE_DEVICES")):
        about_gpus([], 2, one_each=True)
