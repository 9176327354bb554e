"""What a training on Spark was like: the figures, the text and the DataFrame's rows."""

from collections import Counter
from math import isnan
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

from gradwire.spark.statistics.records import Phase
from gradwire.spark.statistics.summary import Summary
from gradwire.spark.training.plan import Outcome
from gradwire.spark.training.worker import Report, Span

START = 1_750_000_000.0
LINES_MAX = 40


def span_of(epoch: int, item: int, after: float, **values: Any) -> Span:
    return Span(epoch, item, START + after, **values)


def outcome_of_two() -> Outcome:
    """One worker with three items, one with one, and one with an empty partition."""
    one = Report(
        "one", 0, 7, START + 1, joined=START + 2, left=START + 9, rank=0, bytes_sent=10, staleness=2
    )
    one.spans = [
        span_of(0, 0, 3, rows=10, steps=2, loss=4.0, data=0.5, compute=1.0, encode=0.25, seconds=2),
        span_of(0, 1, 5, rows=10, steps=2, loss=2.0, compute=1.0, apply=0.5, wait=0.25, seconds=2),
        span_of(1, 0, 7, rows=5, steps=1, loss=1.0, compute=1.5, seconds=1.5),
    ]
    two = Report("two", 1, 8, START + 1, joined=START + 3, left=START + 9, rank=1, bytes_received=7)
    two.spans = [span_of(1, 1, 4, rows=15, steps=3, loss=3.0, compute=4.0, seconds=4)]
    idle = Report("three", 2, 9, START + 2)
    phases = [("found", START, 1.0), ("train", START + 1, 9.0)]
    return Outcome(
        {}, [two, one, idle], phases, {"items": 2, "epochs": 2, "done": 4, "finished": 0}
    )


def outcome_of_many(spans: int, workers: int) -> Outcome:
    reports = []
    for n in range(workers):
        began = START + n / 10
        report = Report(f"host-{n}", n, n, began, joined=began + 1, left=began + 1e5, rank=n)
        for turn in range(spans // workers):
            item = turn * workers + n
            values = {"rows": 64, "steps": 2, "loss": 1 + 1 / (1 + turn), "data": 0.1}
            values |= {"compute": 0.5, "encode": 0.1, "apply": 0.1, "wait": 0.1, "seconds": 0.9}
            report.spans.append(span_of(item // 1_000, item % 1_000, n / 10 + 2 + turn, **values))
        reports.append(report)
    return Outcome({}, reports, [("train", START, 1e3)])


# Figures.


def test_rows_rates_and_bytes_are_those_of_all_workers() -> None:
    summary = Summary(outcome_of_two())

    assert summary.rows == 40
    assert summary.seconds == 5.5  # from 3 to 7 + 1.5
    assert summary.rows_per_second == pytest.approx(40 / 5.5)
    assert (summary.bytes_sent, summary.bytes_received) == (10, 7)
    assert summary.staleness == pytest.approx(2 * 25 / 40)
    assert summary.phases == [Phase("found", START, 1.0), Phase("train", START + 1, 9.0)]


def test_loss_of_an_epoch_weighs_items_by_their_rows() -> None:
    assert Summary(outcome_of_two()).losses == [3.0, (1.0 * 5 + 3.0 * 15) / 20]


def test_epoch_without_rows_has_no_loss() -> None:
    outcome = outcome_of_two()
    outcome.reports[1].spans.append(span_of(3, 0, 8.6))

    losses = Summary(outcome).losses

    assert losses[:2] == [3.0, 2.5]
    assert all(isnan(loss) for loss in losses[2:])
    assert len(losses) == 4


def test_items_say_who_trained_what_in_the_order_of_time() -> None:
    items = Summary(outcome_of_two()).items

    assert [(i.epoch, i.item, i.host, i.attempt, i.rank) for i in items] == [
        (0, 0, "one", 7, 0),
        (1, 1, "two", 8, 1),
        (0, 1, "one", 7, 0),
        (1, 0, "one", 7, 0),
    ]


def test_phases_that_were_measured_as_longer_than_their_item_leave_no_negative_time() -> None:
    outcome = outcome_of_two()
    outcome.reports[1].spans[0].seconds = 1.0

    item = Summary(outcome).items[0]

    assert (item.seconds, item.other) == (1.75, 0.0)


def test_workers_have_the_sums_of_their_items() -> None:
    workers = {worker.host: worker for worker in Summary(outcome_of_two()).workers}

    one, idle = workers["one"], workers["three"]
    assert (one.items, one.rows, one.compute, one.other) == (3, 25, 3.5, 0.5)
    assert (one.joined, one.left, one.name, one.seconds) == (START + 2, START + 9, "one/7", 5.5)
    assert (idle.items, idle.rank, idle.joined, idle.left) == (0, None, None, None)


def test_short_name_of_a_worker_has_no_domain() -> None:
    outcome = outcome_of_two()
    outcome.reports[0].host = "node-1.example.org"

    names = [worker.short_name for worker in Summary(outcome).workers]

    assert names == ["one/7", "node-1/8", "three/9"]


def test_events_of_a_worker_follow_one_another() -> None:
    events = [event for event in Summary(outcome_of_two()).events() if event.who == "one/7"]

    ends = [event.began + event.seconds for event in events]
    assert [event.began for event in events[1:-1]] == pytest.approx(
        [START + 3, *ends[1:-2]]  # between joining and the first item, no event
    )
    assert (events[0].phase, events[-1].phase) == ("start", "leave")
    assert ends[-1] == START + 9
    assert Counter(event.phase for event in events)["compute"] == 3


def test_items_of_workers_that_were_lost_are_counted() -> None:
    outcome = outcome_of_two()
    outcome.ledger = {"items": 4, "epochs": 2, "done": 8, "finished": 0, "returned": 1}
    outcome.done_before = 1

    summary = Summary(outcome)

    assert summary.unreported == 3
    assert "3 of them by workers that were lost" in str(summary)
    assert Summary(outcome_of_two()).unreported == 0


# Text.


def test_text_says_who_did_what() -> None:
    outcome = outcome_of_two()
    outcome.scores, outcome.best_epoch, outcome.stopped = [0.5, 0.75], 1, "no improvement"

    lines = str(Summary(outcome)).splitlines()

    assert lines[0] == "40 rows in 5.5 s: 7.27 rows/s by 2 workers"
    assert "4 of 4 items done" in lines
    assert "stopped early: no improvement" in lines
    assert [line.split() for line in lines if line.startswith(("1 ", "2 "))] == [
        ["1", "(best)", "3", "0.5"],
        ["2", "2.5", "0.75"],
    ]
    assert next(line for line in lines if line.startswith("one/7")).split()[1:4] == ["0", "3", "25"]
    assert repr(Summary(outcome)) == str(Summary(outcome))


def test_text_of_many_workers_and_epochs_has_the_first_and_the_last_ones() -> None:
    workers = str(Summary(outcome_of_many(20_000, 4_000))).splitlines()
    report = Report("one", 0, 7, START, joined=START, left=START + 2e4, rank=0)
    report.spans = [span_of(n, 0, n, rows=1, loss=1.0, seconds=1.0) for n in range(20_000)]
    epochs = [line.split() for line in str(Summary(Outcome({}, [report]))).splitlines()]

    assert workers[-1] == "... 3,990 more"
    assert len(workers) < LINES_MAX
    first = epochs.index(["epoch", "loss"])
    assert epochs[first + 1 : first + 4] == [["1", "1"], ["..."], ["19993", "1"]]
    assert epochs[first + 10] == ["20000", "1"]


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome({}),
        Outcome({}, [Report("one", 0, 7, START)]),
        Outcome({}, [], [("train", START, 0.0)]),
        Outcome({}, [Report("one", 0, 7, START, START, START, 0, [span_of(0, 0, 0)])]),
    ],
    ids=["nothing", "worker", "phase", "item"],
)
def test_training_without_rows_has_a_text(outcome: Outcome) -> None:
    summary = Summary(outcome)

    assert "0 rows in 0 s" in str(summary)
    assert summary.rows_per_second == summary.staleness == 0
