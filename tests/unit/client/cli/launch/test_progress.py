"""How long works will take, and what is said of a run in a line."""

from dataclasses import replace

import pytest

from gradwire.cli.launch.progress import Pace, token_of, total
from gradwire.cli.top.advance import Advance
from gradwire.cli.top.figures import Picture, Run
from support.api_documents import a_run, documents, worker


def run_with(done: int, left: int) -> Run:
    work = {"name": "items", "done": done, "finished": 0, "held": 0, "left": left}
    [run] = Picture.of(documents(a_run("bert", [worker(0)], works=[work]))).runs
    return run


def test_the_time_that_is_left_follows_from_the_items_that_were_done_meanwhile() -> None:
    pace = Pace()

    assert pace.remaining_seconds(run_with(10, 90), now=100.0) is None
    assert pace.remaining_seconds(run_with(30, 70), now=110.0) == pytest.approx(35.0)
    assert pace.remaining_seconds(run_with(100, 0), now=150.0) is None


def test_a_line_says_what_is_known() -> None:
    workers = [worker(0, step=10), worker(1, step=14), worker(2, "silent", step=12)]
    picture = Picture.of(documents(a_run("bert", workers)))

    advance = Advance.of(picture.runs[0], picture, started=3, remaining_seconds=75.0)

    assert advance.line(1_000) == (
        "2 of 3 workers, 1 silent, steps 10 to 14, 25.0 steps/s, loss 3.00, 1:15 left, "
        "1.2 MB/s up, 3.4 MB/s down"
    )
    assert advance.lines(40, "gradwire run") == [
        "gradwire run: 2 of 3 workers, 1 silent",
        "steps 10 to 14, 25.0 steps/s, loss 3.00",
        "1:15 left, 1.2 MB/s up, 3.4 MB/s down",
    ]


def test_a_line_of_a_run_that_logs_nothing_is_short() -> None:
    nothing = a_run("bert", [worker(0, figures={}, scalars={}, step=None)], figures={})
    [run] = Picture.of(documents(nothing)).runs

    assert Advance.of(run).line(1_000) == "1 worker"
    assert (
        Advance.of(replace(run, updates_per_second=4.0)).line(1_000) == "1 worker, 4.00 updates/s"
    )
    assert Advance(steps=(5.0, 5.0), total=500.0).line(1_000) == "step 5 of 500"
    assert Advance().lines(40, "gradwire run") == []


def test_figures_whose_sum_is_beyond_all_floats_are_left_out() -> None:
    figures = {"steps_per_second": 1e308, "density_ratio": 1e307}
    most = documents(
        a_run("bert", [worker(r, figures=figures, scalars={}) for r in range(2)], figures={})
    )
    most.overview["figures"] = {"received_bytes_per_second": 1e308}
    picture = Picture.of(most)

    up = total([picture, picture], "received_bytes_per_second")
    line = Advance.of(picture.runs[0], up_bytes_per_second=up).line(1_000)

    assert line.startswith("2 workers, ")
    assert "/s" not in line


def test_a_token_that_cannot_be_read_is_none() -> None:
    assert token_of({}) is None
    assert token_of({"GRADWIRE_HTTP_TOKEN_FILE": "/nowhere"}) is None
