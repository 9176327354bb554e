"""The event files of a run, read by TensorBoard's own reader."""

import errno
import math
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gradwire_server.daemon.event_folder import EventFolder, folder_of, safe_name
from gradwire_server.series.board import Curve
from gradwire_server.series.series import Shown
from support.tensorboard import scalars_in


def shown(
    steps: list[int], values: list[float], *, rank: int | None = 0, name: str = "loss"
) -> Shown:
    mean = np.array(values, np.float64)
    step = np.array(steps, np.int64)
    return Shown(name, rank, Curve(1, step, step / 10, mean, mean, mean, np.ones_like(step)))


def test_each_worker_and_the_mean_have_a_folder_of_their_own(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path)
    folder.add(shown([1, 2], [4.0, 3.0]), 1000.0)
    folder.add(shown([1], [0.5], name="train/rate"), 1000.0)
    folder.add(shown([1], [5.0], rank=None), 1000.0)

    assert folder.flush() == 4

    assert scalars_in(tmp_path) == {
        "worker-0": {"loss": [(1, 4.0), (2, 3.0)], "train/rate": [(1, 0.5)]},
        "mean": {"loss": [(1, 5.0)]},
    }
    [first, *_] = EventAccumulator(str(tmp_path / "worker-0")).Reload().Scalars("loss")
    assert first.wall_time == pytest.approx(1000.1)


def test_what_is_no_finite_number_stays_what_it_is(tmp_path: Path) -> None:
    values = [math.nan, math.inf, -math.inf, 1e300]
    folder = EventFolder(tmp_path)
    folder.add(shown([1, 2, 3, 4], values), 0.0)
    folder.flush()

    read = [value for _, value in scalars_in(tmp_path)["worker-0"]["loss"]]
    assert math.isnan(read[0])
    assert read[1:] == [math.inf, -math.inf, math.inf], "a float32 has no 1e300"


NAMES = ["<b>loss</b>", "../../loss", "läss", "x" * 64, "a/b/c", " ", "%s{}", "\U0001f4a5"]


def test_names_of_series_come_back_as_they_were(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path)
    for name in NAMES:
        folder.add(shown([1], [1.0], name=name), 0.0)
    folder.flush()

    assert scalars_in(tmp_path)["worker-0"].keys() == set(NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0"]


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("default", "default"),
        ("resnet50-v1.5 lr=0.1", "resnet50-v1.5 lr=0.1"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".", "%2E"),
        (".hidden", "%2Ehidden"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("run~2", "run%7E2"),
        ("50%", "50%25"),
        ("<script>", "%3Cscript%3E"),
        ("grün 2", "grün 2"),
        ("nul\x00 and\nline", "nul%00 and%0Aline"),
    ],
)
def test_a_run_of_any_name_has_a_folder_that_is_safe(run: str, name: str, tmp_path: Path) -> None:
    assert safe_name(run) == name
    path = folder_of(tmp_path, run, goes_on=False)
    path.mkdir()
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_long_names_are_cut_and_stay_different(tmp_path: Path) -> None:
    names = {safe_name("\U0001f4a5" * 100), safe_name("\U0001f4a5" * 101), safe_name("ü" * 255)}

    assert len(names) == 3
    for name in names:
        assert len(name.encode()) <= 120
        (tmp_path / f"{name}~999999999").mkdir()


def test_a_run_that_begins_has_a_new_folder_and_one_that_goes_on_has_the_last(
    tmp_path: Path,
) -> None:
    said = []
    for goes_on in (True, False, True, False, True):
        path = folder_of(tmp_path, "a.b", goes_on=goes_on)
        path.mkdir(exist_ok=True)
        said.append(path.name)
    (tmp_path / "aXb~7").mkdir()

    assert said == ["a.b", "a.b~2", "a.b~2", "a.b~3", "a.b~3"]
    assert folder_of(tmp_path, "a.b", goes_on=False).name == "a.b~4"
    assert folder_of(tmp_path / "none", "a.b", goes_on=True).name == "a.b"


def test_a_write_that_a_full_disk_cuts_off_is_taken_back_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = EventFolder(tmp_path)
    folder.add(shown([1], [1.0]), 0.0)
    folder.flush()
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:50])

    folder.add(shown([2, 3, 4], [2.0, 3.0, 4.0]), 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            folder.flush()
    assert scalars_in(tmp_path) == {"worker-0": {"loss": [(1, 1.0)]}}

    assert folder.begin() == 0
    folder.add(shown([2, 3, 4], [2.0, 3.0, 4.0]), 0.0)
    folder.flush()

    loss = [(step, float(step)) for step in (1, 2, 3, 4)]
    assert scalars_in(tmp_path) == {"worker-0": {"loss": loss}}
    assert len(list(tmp_path.glob("worker-0/*"))) == 1


def test_a_folder_that_was_removed_is_made_again_with_all_that_there_is(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = EventFolder(path)
    folder.add(shown([1], [1.0]), 0.0)
    folder.add_figures(10, 0.0, {"rate": 1.0})
    folder.flush()
    folder.tail.note(0, "loss", 2)
    shutil.rmtree(path)

    assert folder.begin() == 2

    folder.add(shown([1, 2], [1.0, 2.0]), 0.0)
    assert folder.add_figures(10, 0.0, {"rate": 1.0})
    folder.flush()
    assert scalars_in(path) == {
        "worker-0": {"loss": [(1, 1.0), (2, 2.0)]},
        "run": {"rate": [(10, 1.0)]},
    }


def test_figures_of_the_run_are_written_when_it_has_gone_on_by_a_thousandth(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path)
    steps = []
    for updates in [0, 1, 1, 2, *range(1000, 1100)]:
        if folder.add_figures(updates, 0.0, {"rate": 1.0}):
            steps.append(updates)
        folder.flush()

    assert steps[:3] == [1, 2, 1000]
    assert all(later >= 1.001 * step for step, later in pairwise(steps))
    assert len(steps) > 50


def test_after_a_restart_it_goes_on_after_the_last_step_in_a_file_of_its_own(
    tmp_path: Path,
) -> None:
    before = EventFolder(tmp_path)
    before.add(shown([1, 2], [1.0, 2.0]), 0.0)
    before.add(shown([1, 2, 3], [1.0, 2.0, 3.0], rank=None), 0.0)
    before.add_figures(7, 0.0, {"rate": 1.0})
    before.flush()
    [file] = tmp_path.glob("worker-0/*")
    with file.open("ab") as opened:
        opened.write(b"\x07" * 30)  # what a killed master has left
    (tmp_path / "notes").mkdir()

    after = EventFolder(tmp_path)

    assert after.tail._marks == {(0, "loss"): 3, (None, "loss"): 4}
    assert not after.add_figures(7, 0.0, {"rate": 1.0})
    after.add(shown([3], [3.0]), 0.0)
    after.flush()
    assert len(list(tmp_path.glob("worker-0/*"))) == 2
    assert scalars_in(tmp_path)["worker-0"] == {"loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_what_is_added_and_not_written_is_forgotten_by_the_next_pass(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path)
    folder.add(shown([1], [1.0]), 0.0)

    folder.begin()

    assert folder.flush() == 0
    assert list(tmp_path.iterdir()) == []
