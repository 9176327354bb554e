"""`RunsOver`: the last runs stay to be looked at, as many as there is room for."""

import numpy as np

from gradwire_protocol.messages.logged.scalars import POINT, Logged
from gradwire_server.series.journal import ENTRIES_MAX, Happening, Journal
from gradwire_server.series.saved import COLUMNS_MAX
from gradwire_server.series.series import Series
from gradwire_server.state.run import Run
from gradwire_server.state.runs_over import BYTES_MAX, RUNS_MAX, RunsOver
from support.peer import join_request

SERIES = 500
"""Of a worker: with so many, a run's series take about as much memory as they can."""


def run(name: str, *, workers: int = 0) -> Run:
    found = Run.begin(name, join_request())
    names = tuple(map(str, range(SERIES)))
    for rank in range(workers):
        points = np.array([(i, COLUMNS_MAX, 0, 1.0) for i in range(SERIES)], POINT)
        found.series.add(rank, bytes([rank]), Logged(1, names, points.tobytes(), 0), 0.0)
    return found


def numbered(over: RunsOver) -> list[str]:
    return [each.numbered_name for each in over]


def test_the_newest_of_a_name_is_found_by_it_and_each_by_its_number() -> None:
    over = RunsOver()
    for at, name in enumerate("aba"):
        over.keep(run(name), (), float(at))

    assert numbered(over) == ["a~2", "b~1", "a~1"]
    found = {name: over.find(name) for name in ("a", "a~1", "a~2", "b", "c", "a~3")}
    assert {name: each and each.ended_at for name, each in found.items()} == {
        "a": 2.0, "a~1": 0.0, "a~2": 2.0, "b": 1.0, "c": None, "a~3": None
    }  # fmt: skip


def test_the_oldest_go_when_there_are_too_many() -> None:
    over = RunsOver()
    for _ in range(RUNS_MAX + 3):
        over.keep(run("a"), (), 0.0)

    assert numbered(over) == [f"a~{number}" for number in range(RUNS_MAX + 3, 3, -1)]


def test_the_oldest_go_when_their_series_take_too_much_memory() -> None:
    over = RunsOver()
    for _ in range(RUNS_MAX):
        over.keep(run("a", workers=2), (), 0.0)

    taken = sum(each.series.nbytes for each in over)
    assert taken <= BYTES_MAX < taken + run("a", workers=2).series.nbytes
    assert next(iter(over)).number == RUNS_MAX


def test_what_happens_after_the_end_is_noted_in_bounded_memory() -> None:
    over, journal, ended = RunsOver(), Journal(), run("a")
    journal.note(Happening.JOINED, "x", run="a", at=0.0)
    journal.note(Happening.JOINED, "x", run="b", at=0.0)
    over.keep(ended, journal.after(0), 1.0)
    [kept] = over
    assert (len(kept.entries), kept.last) == (1, 1)

    for _ in range(2 * ENTRIES_MAX):
        over.add(ended.series, journal.note(Happening.CHECKPOINT, "x", run="a", at=2.0))
    over.add(Series(), journal.note(Happening.CHECKPOINT, "x", run="a", at=2.0))

    assert (len(kept.entries), kept.last) == (ENTRIES_MAX, 2 + 2 * ENTRIES_MAX)
