"""Many workers that log much, and what somebody sees of it who looks at it every second."""

import json
from collections.abc import Iterator

from gradwire_protocol.messages.operating.scalars import POINTS_MAX, Logged, pack_points
from gradwire_server.http.api.documents import NAMES_SHOWN_MAX, POINTS_OF_ANSWER_MAX
from gradwire_server.series.series import CELLS_MAX
from support.crowd import crowd
from support.tiers import count

SCALARS = 100
"""That a worker logs in a second."""


def size_of(parts: Iterator[bytes]) -> int:
    body = b"".join(parts)
    json.loads(body)
    return len(body)


def test_what_200_workers_log_for_a_while_stays_within_its_bounds() -> None:
    workers = count(200, quick=30, of="workers")
    seconds = count(120, quick=40, of="seconds of what each of them logs")
    watched = crowd(workers)
    series = watched.run("bert").series
    names = tuple(f"layer {i}/norm" for i in range(SCALARS))
    sizes = []
    for second in range(seconds):
        points = pack_points([(i, 10 * second, 0, second / (1 + i)) for i in range(SCALARS)])
        for rank in range(workers):
            logged = Logged(second + 1, names, points, 0)
            series.add(rank, bytes([rank]), logged, watched.daemon.network.now + second)
        sizes.append(size_of(watched.documents.run_parts("bert")))
    curves = size_of(watched.documents.series_parts("bert", names[:16], 4_096, range(workers)))

    assert (series.taken, series.dropped) == (workers * seconds * SCALARS, 0)
    assert sum(board.cells for board in series._boards.values()) <= CELLS_MAX
    assert max(sizes) < workers * 2_000 + 10_000
    assert curves < POINTS_OF_ANSWER_MAX * 80


def test_more_than_its_share_is_dropped_of_one_worker_and_of_nobody_else() -> None:
    watched = crowd(2)
    series, now = watched.run("bert").series, watched.daemon.network.now
    full = pack_points([(0, step, 0, 1.0) for step in range(POINTS_MAX)])
    for number in range(1, 101):
        series.add(0, b"greedy", Logged(number, ("loss",), full, 7), now)
        series.add(1, b"modest", Logged(number, ("loss",), full[:18], 0), now)

    assert series.taken == 4 * POINTS_MAX + 100
    assert series.dropped == 96 * POINTS_MAX + 700
    head = json.loads(b"".join(watched.documents.run_parts("bert")))
    assert head["scalars"] == series.taken


def test_names_that_are_all_different_take_no_more_room_than_there_is() -> None:
    """A script that puts its step into the name of a series."""
    workers = count(200, quick=20, of="workers")
    watched = crowd(workers)
    series, now = watched.run("bert").series, watched.daemon.network.now
    sent = 0
    for number in range(1, count(41, quick=11, of="messages of each")):
        for rank in range(workers):
            names = tuple(f"<b>loss {rank} {number}.{i}" for i in range(10))
            points = pack_points([(i, number, 0, 1.0) for i in range(10)])
            series.add(rank, bytes([rank]), Logged(number, names, points, 0), now + number)
            sent += 10

    assert series.taken + series.dropped == sent
    assert sum(board.cells for board in series._boards.values()) <= CELLS_MAX
    head = json.loads(b"".join(watched.documents.run_parts("bert")))
    assert len(head["series"]) == min(len(series.names()), NAMES_SHOWN_MAX)
