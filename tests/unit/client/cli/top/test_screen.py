import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gradwire.cli.top.documents import loss_name
from gradwire.cli.top.screen import BARS, MISSING, frame, line_of, runs_in, sparkline
from support.http_documents import documents, worker


def lines(found: Any, columns: int, rows: int | None, note: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=columns, highlight=False, markup=False, emoji=False)
    console.print(frame(found, "http://127.0.0.1:40124", columns, rows, note))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_small_terminal_has_what_matters() -> None:
    shown = lines(documents("bert"), 80, 24)

    assert "127.0.0.1:40124" in shown[0]
    assert "1.5 MB/s in" in shown[0]
    assert "34 % cpu" in shown[0]
    [run] = [line.split() for line in shown if line.startswith("bert")]
    assert run[:4] == ["bert", "2", "25", "2.5"]
    assert run[-1] == f"{BARS[7]}{BARS[4]}{MISSING}{BARS[0]}"
    [row] = [line.split() for line in shown if "host1" in line]
    assert row[0] == "1"
    assert {"live", "1,001", "12.5", "3", "166"} <= set(row)
    assert "rank 19 has joined" in shown[-1]
    assert "1:21 ago" in shown[-1]


def test_a_large_terminal_has_more_columns_and_no_worker_is_left_out() -> None:
    found = documents("bert", workers=[worker(rank) for rank in range(30)])

    shown = lines(found, 200, 60)

    assert sum("77,0" in line for line in shown) == 30
    assert not any("more" in line for line in shown)


def test_workers_in_trouble_come_first_and_those_without_room_are_counted() -> None:
    states = {7: "silent", 8: "quarantined", 29: "silent"}
    workers = [worker(rank, state=states.get(rank, "live")) for rank in range(30)]

    shown = lines(documents("bert", workers=workers), 80, 24)

    heading = next(i for i, line in enumerate(shown) if "RANK" in line)
    assert [line.split()[0] for line in shown[heading + 1 : heading + 4]] == ["7", "8", "29"]
    [rest] = [line for line in shown if line.startswith("…")]
    shown_count = sum("host" in line for line in shown)
    assert f"{30 - shown_count} more" in rest


def test_workers_of_several_runs_say_whose_they_are() -> None:
    shown = lines(documents("bert", "gpt"), 80, 24)

    assert sum(line.startswith("bert") for line in shown) == 3
    assert sum(line.startswith("gpt") for line in shown) == 3


def test_a_master_without_runs_says_so() -> None:
    assert "no run is in progress" in lines(documents(), 80, 24)


def test_a_worker_that_is_held_up_says_by_whom() -> None:
    workers = [worker(0, held_by=3), worker(1, held_by=None), worker(3)]

    shown = lines(documents("bert", workers=workers), 80, 24)

    rows = [line for line in shown if "host" in line]
    assert ["waits for rank 3 " in row for row in rows] == [True, False, False]


def over(count: int = 1) -> list[dict[str, Any]]:
    line = {"mode": "sharing", "workers": 4, "finished": True, "ended_unix_time": 880.0}
    return [{"name": f"old{number}", **line} for number in range(count)]


def test_runs_that_are_over_stand_below_and_say_since_when() -> None:
    shown = lines(documents("bert") | {"over": over(9)}, 80, 24)
    alone = lines(documents() | {"over": over()}, 80, 24)

    first = next(i for i, line in enumerate(shown) if line.startswith("bert"))
    assert shown[first + 1].split()[:5] == ["old0", "4", "finished", "2:00", "ago"]
    assert sum(line.startswith("old") for line in shown) == 3
    assert sum("host" in line for line in shown) == 2, "workers keep their room"
    assert sum(line.startswith("old") for line in alone) == 1
    everything = lines(documents("bert") | {"over": over(9)}, 80, None)
    assert sum(line.startswith("old") for line in everything) == 9


def test_a_run_that_is_over_and_was_asked_for_is_shown_with_its_workers() -> None:
    found = documents("bert", workers=[worker(0, state="finished")])
    found["runs"]["bert"]["run"] |= {"finished": False, "ended_unix_time": 880.0}

    shown = lines(found, 80, 24)

    assert any(line.startswith("bert") and "ended 2:00 ago" in line for line in shown)
    assert sum("host0" in line for line in shown) == 1


def test_a_run_in_a_line() -> None:
    [run] = runs_in(documents("bert"))

    figures = "loss 2.5, updates/s 25, bytes/s 12.5 KB"
    assert line_of(run) == f"bert: workers 2, step 1,001, {figures}"
    # Rank 0 has 1,001 of the steps and makes 12.5 a second.
    assert line_of(run, 2_001) == f"bert: workers 2, step 1,002 of 2,001, eta 1:20, {figures}"
    assert line_of(run | {"workers": [], "step": None}, 9) == f"bert: workers 0, {figures}"
    stopping = {"state": "stopping: enough"}
    assert line_of(run | stopping).startswith("bert: stopping: enough, workers 2, step")


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -1e308])
    | st.floats()
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.text(min_size=1, max_size=40)
WORKERS = st.lists(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(worker(0), JUNK),
    )
    | st.builds(worker, st.integers(0, 99), state=st.text(), name=NAMES),
    max_size=40,
)


@given(
    st.lists(NAMES, max_size=20, unique=True), WORKERS, JUNK, st.text(),
    st.integers(80, 250), st.integers(24, 70),
)  # fmt: skip
def test_any_picture_fits_its_terminal_and_sends_it_nothing_to_act_on(
    names: list[str], workers: list[dict[str, Any]], junk: Any, note: str, columns: int, rows: int
) -> None:
    found = documents(*names, workers=workers)
    found["over"] = [{"name": junk, "workers": junk, "ended_unix_time": junk}, *over(), junk]
    for name in names[:1]:
        found["runs"][name] |= {"events": junk, "series": {"curves": [{"mean": junk}]}}
    found["overview"]["figures"] = junk

    shown = lines(found, columns, rows, note)

    assert len(shown) <= rows
    assert all(cell_len(line) <= columns for line in shown)
    assert all(line.isprintable() for line in shown)


@given(st.lists(st.none() | st.floats() | st.just(-1e308), max_size=100), st.integers(0, 60))
def test_a_curve_has_a_bar_for_some_neighbours_each(
    values: list[float | None], columns: int
) -> None:
    shown = sparkline(values, columns)

    assert len(shown) == min(len(values), columns)
    assert set(shown) <= {*BARS, MISSING}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), None),
        (("accuracy", "glossy", "lossless"), None),
        (("train/loss", "loss", "val_loss"), "loss"),
        (("train/loss_epoch", "accuracy"), "train/loss_epoch"),
        ((None, 3, "Loss"), "Loss"),
    ],
)
def test_the_loss_is_found_by_its_name(names: tuple[Any, ...], expected: str | None) -> None:
    assert loss_name(names) == expected
