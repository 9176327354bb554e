"""Event files of what workers log, read by TensorBoard's own reader."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.daemon.event_files import EventFiles, Marks, due, folder_of
from gradwire_server.series.series import Series
from support.curves import logged, means_in
from support.tensorboard import scalars_in
from support.training import SimulatedRun


class Site:
    """A run with two workers, and event files of what they log in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = EventFiles(folder)
        self.run = SimulatedRun()
        self.run.join_and_wait(2)
        self._number = 0
        self._now = 0.0

    def log(self, rank: int, step: int, **values: float) -> None:
        self._number += 1
        [master] = self.run.runs.in_progress.values()
        assert master.run is not None
        master.run.series.add(rank, bytes([rank]), logged(self._number, step, values), self._now)

    def look(self) -> None:
        """Write what is new, as after a long time, and wait until it is written."""
        self._now += 1_000.0
        self.files.look(self.run.runs.masters, self._now)
        self.files.wait()

    def close(self) -> None:
        self.files.close(self.run.runs.masters, self._now)

    @property
    def found(self) -> dict[str, dict[str, list[tuple[int, float]]]]:
        return scalars_in(self.folder)


LOOK = None
LOGGED = st.lists(st.sampled_from([0, 1]) | st.just(LOOK), max_size=60)
"""The rank of a worker that logs its next step, or that it is time to write."""


@given(LOGGED, st.sampled_from([1, 7]))
def test_each_point_is_due_once_forwards_and_all_of_them_at_the_end(
    happenings: list[int | None], gap: int
) -> None:
    series, marks = Series(), Marks()
    steps = [0, 0]
    written: dict[tuple[str, int | None], list[tuple[int, float]]] = defaultdict(list)

    def write(live: frozenset[int] | None) -> None:
        for shown in due(series, marks, live):
            curve = shown.curve
            written[shown.series, shown.rank] += zip(
                curve.step.tolist(), curve.mean.tolist(), strict=True
            )
            marks[shown.rank, shown.series] = int(curve.step[-1]) + curve.steps

    for number, rank in enumerate(happenings, 1):
        if rank is None:
            write(frozenset((0, 1)))
        else:
            steps[rank] += gap
            values = {"loss": float(number)} | ({"score": 1.0} if steps[rank] % 3 == 0 else {})
            series.add(rank, bytes([rank]), logged(number, steps[rank], values), 0.0)
    both_have_logged = all(steps)
    write(None)

    if both_have_logged:
        expected = means_in(series)
        workers = {key: points for key, points in expected.items() if key[1] is not None}
        assert {key: written[key] for key in workers} == workers
    for points in written.values():
        assert [step for step, _ in points] == sorted({step for step, _ in points})


def test_tensorboard_reads_each_worker_s_curves_and_the_mean(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for step in (1, 2, 3):
        site.log(0, step, loss=4.0 - step)
        site.log(1, step, loss=6.0 - step, **{"läss/<b>": 1.0})

    site.look()
    before = site.found
    site.log(0, 4, loss=0.0)
    site.close()

    assert before["default/worker-0"] == {"loss": [(1, 3.0), (2, 2.0)]}
    assert before["default/mean"]["loss"] == [(1, 4.0), (2, 3.0)]
    assert site.found["default/worker-0"] == {"loss": [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.0)]}
    assert site.found["default/worker-1"]["läss/<b>"] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert site.found["default/mean"]["loss"] == [(1, 4.0), (2, 3.0), (3, 2.0), (4, 0.0)]


def test_a_run_that_is_over_before_the_first_look_is_written_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.log(0, 1, loss=3.0)
    site.log(0, 2, loss=2.0)
    for _, master in site.run.runs.masters:
        master.state.end_run()

    site.look()
    first = site.found
    site.look()
    site.close()

    assert first["default/worker-0"] == first["default/mean"] == {"loss": [(1, 3.0), (2, 2.0)]}
    assert site.found == first


def test_what_cannot_be_written_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path)
    for step in (1, 2):
        site.log(0, step, loss=1.0)
    site.look()
    in_the_way = tmp_path / "default" / "worker-1"
    in_the_way.touch()
    for step in (1, 2, 3):
        site.log(1, step, loss=2.0)

    site.look()
    site.look()
    in_the_way.unlink()
    site.look()

    assert site.found["default/worker-0"] == {"loss": [(1, 1.0)]}
    assert site.found["default/worker-1"] == {"loss": [(1, 2.0), (2, 2.0)]}
    assert site.found["default/mean"] == {"loss": [(1, 1.0)]}
    assert len([text for text in caplog.messages if str(tmp_path) in text]) == 1


def test_a_run_that_goes_on_after_a_restart_goes_on_in_its_files(tmp_path: Path) -> None:
    first = Site(tmp_path)
    first.log(0, 1, loss=1.0)
    first.close()
    [master] = first.run.runs.in_progress.values()
    assert master.run is not None
    master.run.recovered = True

    first.files = EventFiles(tmp_path)
    first.log(0, 2, loss=2.0)
    first.close()
    other = Site(tmp_path)
    other.log(0, 1, loss=5.0)
    other.close()

    assert first.found["default/worker-0"] == {"loss": [(1, 1.0), (2, 2.0)]}
    assert first.found["default~2/worker-0"] == {"loss": [(1, 5.0)]}


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(ValueError, match=f"--tensorboard {file}"):
        EventFiles(file)


@given(st.text(min_size=1, max_size=300))
def test_any_name_of_a_run_is_that_of_a_folder(name: str) -> None:
    parent = Path(__file__).parent

    folder = folder_of(parent, name, goes_on=False)

    assert folder.parent == parent
    assert not folder.name.startswith(".")
    assert len(folder.name) < 140
    assert "~" not in folder.name
