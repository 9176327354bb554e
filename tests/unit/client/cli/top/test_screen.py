"""What ``gradwire top`` draws, as a terminal shows it: see `support.api_documents`."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pyte
import pytest
from rich.console import Console
from rich.text import Text

from gradwire.cli.top.documents import Documents
from gradwire.cli.top.figures import Picture
from gradwire.cli.top.screen import View, frame, offset_max
from support.api_documents import HOSTILE, a_run, documents, worker

SIZES = [(80, 24), (200, 50), (60, 20), (20, 6), (1, 1)]

KINDS = {
    "none": lambda: documents(),
    "a run without workers": lambda: documents(a_run("bert", [])),
    "one": lambda: documents(a_run("bert", [worker(0)]), texts=["rank 0 joined"]),
    "four": lambda: documents(a_run("bert", [worker(r) for r in range(4)]), texts=["a"] * 30),
    "two runs": lambda: documents(
        a_run("bert", [worker(0), worker(1)]), a_run("resnet", [worker(0)]), texts=["a", "b"]
    ),
    "200": lambda: documents(
        a_run("bert", [worker(r, "silent" if r == 150 else "live") for r in range(200)]),
        texts=["a"] * 3,
    ),
    "many runs": lambda: documents(*(a_run(f"run{n}", [worker(0)]) for n in range(40))),
    "hostile": lambda: documents(
        a_run(HOSTILE, [worker(0, HOSTILE, name=HOSTILE, key_name=HOSTILE, address=HOSTILE)]),
        texts=[HOSTILE],
    ),
    "nothing known": lambda: documents(
        a_run(
            "bert",
            [worker(0, figures={"steps_per_second": None}, scalars={}, step=None)],
            figures={},
            parameters=None,
        )
    ),
    "nonsense": lambda: Documents(
        {"runs": [{"name": "bert", "workers": "many"}, 7, None], "figures": [], "relays": 3,
         "uptime_seconds": 1e300, "master": "me", "unix_time": float("nan")},
        {"bert": {"workers": [{"rank": 10**400, "step": True, "state": 4, "figures": 1,
                               "scalars": {"loss": float("inf")}}, []],
                  "figures": {"updates_per_second": float("nan")}, "works": [{"done": "x"}]}},
        {"bert": {"events": [{"unix_time": 1e300, "kind": None, "text": ["x"]}, 0]}},
        {"bert": {"curves": [{"name": 4, "mean": [float("nan"), "x", 1e308, -1e308]}]}},
    ),
}  # fmt: skip


def view_of(kind: str) -> View:
    return View("http://127.0.0.1:40124", Picture.of(KINDS[kind]()), has_keys=True)


def shown(lines: Sequence[Text], columns: int, rows: int) -> list[str]:
    """Return what a terminal of this size shows of some lines."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=columns, color_system="truecolor")
    for line in lines:
        console.print(line, soft_wrap=True, end="")
        file.write("\0")
    screen = pyte.Screen(columns, rows)
    stream = pyte.Stream(screen)
    stream.feed("\r\n".join(file.getvalue().split("\0")[:-1]))
    assert screen.title == ""
    return [line.rstrip() for line in screen.display]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_line_is_shown_as_it_is_and_none_wraps(kind: str, size: tuple[int, int]) -> None:
    columns, rows = size
    lines = frame(view_of(kind), columns, rows)

    assert len(lines) == rows
    assert shown(lines, columns, rows) == [line.plain.rstrip() for line in lines]


@pytest.mark.parametrize("note", ["", "no answer from http://127.0.0.1:40124 within 5 s"])
@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_the_roster_has_a_row_for_each_of_four_workers(size: tuple[int, int], note: str) -> None:
    lines = [line.plain for line in frame(replace(view_of("four"), note=note), *size)]

    assert [line.split()[:2] for line in lines if "gpu" in line] == [
        [str(rank), f"gpu{rank}"] for rank in range(4)
    ]
    assert note[:40] in "\n".join(lines)
    assert any("joined" in line for line in lines)
    assert "q quit" in lines[-1]


def test_columns_that_have_no_room_are_left_out_by_their_importance() -> None:
    headings = {
        columns: next(
            line.plain.split() for line in frame(view_of("four"), columns, 24) if "RANK" in line
        )
        for columns in (200, 80, 60, 30)
    }

    assert headings[200] == [
        "RANK", "NAME", "HOST", "STATE", "STEP", "STEPS/S", "STALE", "BYTES/S", "DENSITY", "RTT",
        "LOSS", "VIA", "VERSION",
    ]  # fmt: skip
    assert headings[80] == [
        "RANK", "NAME", "HOST", "STATE", "STEP", "STEPS/S", "STALE", "BYTES/S", "DENSITY", "RTT",
        "LOSS",
    ]  # fmt: skip
    assert headings[60] == ["RANK", "NAME", "STATE", "STEP", "STEPS/S", "STALE", "BYTES/S", "LOSS"]
    assert headings[30] == ["RANK", "NAME", "STATE", "STEP", "LOSS"]


def test_figures_stand_in_the_rows_and_in_the_header() -> None:
    text = "\n".join(line.plain for line in frame(view_of("four"), 200, 50))

    for figure in ("1.2 MB/s in, 3.4 MB/s out", "42 % cpu", "230 MB", "up 1:02:03",
                   "1.2.3", "168,320",
                   "48.5", "3.50", "51.2 KB/s", "2.1 ms", "0.310 %", "host3"):  # fmt: skip
        assert figure in text
    assert "█▇·▁" in text


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
def test_workers_without_room_are_counted_and_those_in_trouble_come_first(
    size: tuple[int, int],
) -> None:
    lines = [line.plain for line in frame(view_of("200"), *size)]

    rows = [line for line in lines if "gpu" in line]
    assert rows[0].split()[:2] == ["150", "gpu150"]
    assert any(f"… and {200 - len(rows)} more" in line for line in lines)


def test_the_last_worker_is_reached_by_scrolling() -> None:
    view = view_of("200")
    view = replace(view, offset=offset_max(view, 24))

    lines = [line.plain for line in frame(view, 80, 24)]

    rows = [line for line in lines if "gpu" in line]
    assert rows[-1].split()[1] == "gpu199"
    rest = f"… and {200 - len(rows)} more ({200 - len(rows)} above): 1 silent"
    assert any(rest in line for line in lines)


def test_a_roster_of_all_runs_says_whose_each_worker_is() -> None:
    all_of_them = frame(view_of("two runs"), 120, 24)
    one = frame(replace(view_of("two runs"), run="resnet"), 120, 24)

    runs = [line.plain.split()[0] for line in all_of_them if "gpu" in line]
    assert runs == ["bert", "bert", "resnet"]
    assert sum("gpu" in line for line in one) == 1
    assert any(line.plain.startswith("> resnet") for line in one)


def test_the_chosen_one_of_many_runs_is_in_sight_and_the_others_are_counted() -> None:
    lines = [line.plain for line in frame(replace(view_of("many runs"), run="run39"), 80, 24)]

    shown_runs = [line for line in lines if line.startswith(("> run", "  run"))]
    assert shown_runs[-1].startswith("> run39")
    assert f"RUN ({len(shown_runs)} of 40)" in lines[1]


def test_a_picture_without_a_height_has_all_workers() -> None:
    lines = frame(view_of("200"), 120, None)

    assert sum("gpu" in line.plain for line in lines) == 200
    assert all(line.cell_len <= 120 for line in lines)
