"""What was logged, saved and read again, for a checkpoint and for a standby."""

import math
from collections import deque
from dataclasses import replace
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.checkpoint import LOGGED_BYTES_MAX
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.histograms import HISTOGRAM, HISTOGRAMS_MAX, LAYERS_MAX
from gradwire_protocol.messages.operating.mirrored import PART_BYTES, Passed, Saved
from gradwire_protocol.messages.operating.scalars import (
    COUNT_MAX,
    POINTS_MAX,
    SERIES_NAME_CHARACTERS_MAX,
    Logged,
    pack_points,
)
from gradwire_server.series import mirror as mirror_module
from gradwire_server.series.histograms import FRAMES_MAX
from gradwire_server.series.mirror import IN_FLIGHT_MAX, Mirror, Mirrored
from gradwire_server.series.saved import SENDER, SavedSeries
from gradwire_server.series.series import CELLS_MAX, SERIES_MAX, Series
from support.curves import buckets_in
from support.distributions import histograms, shown_in
from support.tiers import examples

WORKERS = [bytes([number]) * WORKER_ID_BYTES for number in range(1, 4)]

Said = list[tuple[int, Logged, float]]


def messages(random: Random, count: int) -> Said:
    """Return ranks of workers, what they log, and how much later than the last message each is."""
    said: Said = []
    for _ in range(count):
        names = random.sample("abcde", random.randint(1, 4))
        steps_max = random.choice([300, 300, 2**32 - 1])
        points = [
            (
                random.randrange(len(names)),
                random.randint(0, steps_max),
                random.randint(0, 5_000),
                random.choice([random.gauss(0, 1), 1e300, math.nan, -math.inf]),
            )
            for _ in range(random.randint(0, 20))
        ]
        number, dropped = random.randint(1, 200), random.choice([0, 0, 3])
        logged = Logged(number, tuple(names), pack_points(points), dropped)
        said.append((random.randint(0, 2), logged, random.uniform(0, 3)))
    return said


def fill(series: Series, said: Said, now: float) -> float:
    for rank, logged, seconds in said:
        now += seconds
        series.add(rank, WORKERS[rank], logged, now)
        if logged.number % 3 == 0:
            more = histograms(logged.number, logged.number, *logged.names)
            series.add_histograms(rank, WORKERS[rank], more, now, (0, 1, 2))
    return now


def packed(series: Series, now: float) -> bytes:
    return b"".join(series.save(now).pieces())


def saved_and_read(series: Series, now: float, *, at: float | None = None) -> Series:
    return Series.restored(packed(series, now), at)


def content(series: Series) -> Any:
    counts = series.taken, series.dropped, series.histograms.taken, series.histograms.dropped
    return repr((counts, buckets_in(series), shown_in(series)))  # in which a NaN equals itself


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 10))
def test_what_was_saved_goes_on_as_if_nothing_had_been(seed: int, first: int, more: int) -> None:
    random, series = Random(seed), Series()
    now = fill(series, messages(random, first), 100.0)
    after = messages(random, more)

    read = saved_and_read(series, now, at=now)

    assert content(read) == content(series)
    # A long time later no allowance counts, which is not saved.
    fill(series, after, now + 1_000.0)
    fill(read, after, now + 1_000.0)
    assert [e.step for each in buckets_in(read).values() for e in each] == [
        e.step for each in buckets_in(series).values() for e in each
    ]
    assert (read.taken, read.dropped) == (series.taken, series.dropped)


def one(number: int, step: int, **fields: Any) -> Logged:
    return replace(Logged(number, ("loss",), pack_points([(0, step, 0, 1.0)]), 0), **fields)


def test_time_goes_on_where_it_was_whatever_the_next_clock_says() -> None:
    series = Series()
    series.add(0, WORKERS[0], one(1, 1), 1_000.0)
    series.add(0, WORKERS[0], one(2, 2), 1_060.0)

    read = saved_and_read(series, 1_061.0)
    again = saved_and_read(read, 7.0)
    again.add(0, WORKERS[0], one(3, 3), 5.0)
    again.add(0, WORKERS[0], one(4, 4), 8.0)

    seconds = [bucket.seconds for bucket in buckets_in(again)["loss", 0]]
    assert seconds == [0.0, 60.0, 61.0, 64.0]


def test_a_message_that_was_here_counts_once_and_one_that_was_not_is_taken() -> None:
    series = Series()
    for number in (1, 2, 5):
        series.add(0, WORKERS[0], one(number, number), 1.0)

    read = saved_and_read(series, 1.0)
    taken = [read.add(0, WORKERS[0], one(number, number), 2.0) for number in range(1, 7)]

    assert taken == [False, False, True, True, False, True]
    assert [bucket.count for bucket in buckets_in(read)["loss", 0]] == [1] * 6
    assert read.add(0, WORKERS[1], one(1, 9), 2.0), "another worker has numbers of its own"


def test_whatever_workers_say_that_they_have_dropped_it_can_be_saved_and_read() -> None:
    series = Series()
    for number in range(1, 4):
        series.add(0, WORKERS[0], one(number, number, dropped=COUNT_MAX), 1.0)
        message = histograms(number, number, "weight", dropped=COUNT_MAX)
        series.add_histograms(0, WORKERS[0], message, float(number), None)

    read = saved_and_read(series, 4.0)

    assert read.dropped == COUNT_MAX
    assert read.histograms.dropped == COUNT_MAX


def test_nothing_logged_is_saved_as_nothing() -> None:
    assert not Series()
    assert not Series.restored(b"")


def changed(arrays: list[bytes] | None = None, **fields: Any) -> bytes:
    """Return a series that was saved, with other arrays, or something else in a field."""
    saved = sample().save(3.0)
    head = replace(saved.head, **fields)
    return b"".join(SavedSeries(head, saved.arrays if arrays is None else arrays).pieces())


def of_board(**fields: Any) -> dict[str, Any]:
    return {"boards": (replace(sample().save(3.0).head.boards[0], **fields),)}


def of_frame(**fields: Any) -> dict[str, Any]:
    saved = sample().save(3.0).head.histograms
    return {"histograms": replace(saved, frames=(replace(saved.frames[0], **fields),))}


def sample() -> Series:
    series = Series()
    series.add(0, WORKERS[0], one(1, 1), 1.0)
    series.add(0, WORKERS[0], one(2, 2), 2.0)
    series.add_histograms(0, WORKERS[0], histograms(1, 2, "weight"), 2.0, (0,))
    return series


NAN = np.full(2, np.nan).tobytes()
SAVED = sample().save(3.0)
BOARD = SAVED.head.boards[0]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"short", "5 bytes"),
        (changed()[:100], "SavedHead"),
        (changed()[:-1], "arrays; the head says"),
        (changed() + b"\0", "arrays; the head says"),
        (changed(columns_max=33), "33 buckets"),
        (changed(columns_max=2**13), "8192 buckets"),
        (changed([*SAVED.arrays] * 2, boards=(BOARD, BOARD)), "rank 0 for a second time"),
        (changed(senders=bytes(SENDER.itemsize - 1)), "no whole numbers"),
        (changed([NAN, *SAVED.arrays[1:]]), "without a time"),
        (changed([bytes(36 * 5_000)], **of_board(columns=5_000)), "5000 buckets, of at most 4096"),
        (changed([bytes(16 + 28 * 4)], **of_board(names=("a", "a"))), "a name twice"),
        (changed(**of_board(width=3)), "3 steps"),
        (changed(**of_frame(histograms=bytes(5))), "no whole histograms"),
        (changed(**of_frame(names=())), "tensor 0 of 0"),
    ],
)
def test_what_is_damaged_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(InvalidMessageError, match=complaint):
        Series.restored(data)


@settings(max_examples=examples(600))
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_whatever_byte_is_changed_it_is_read_or_refused(at: int, by: int) -> None:
    data = bytearray(changed())
    data[at % len(data)] ^= by
    try:
        read = Series.restored(data)
    except InvalidMessageError:
        return
    assert list(read.curves()) is not None
    assert shown_in(read) is not None


def test_all_that_a_run_can_have_fits() -> None:
    names = SERIES_MAX * (4 * SERIES_NAME_CHARACTERS_MAX + 5)
    frame = HISTOGRAM.itemsize * HISTOGRAMS_MAX + LAYERS_MAX * (4 * NAME_CHARACTERS_MAX + 5) + 200
    boards = CELLS_MAX * 28 + 8 * 2**20 + names + 2**14 * 100
    senders = 2 * SENDER.itemsize * 2**12

    assert boards + senders + (FRAMES_MAX + 1) * frame <= LOGGED_BYTES_MAX


# To a standby.


class Standby:
    """A standby, and the link to it, which delivers what a test lets it."""

    def __init__(self) -> None:
        self.under_way: deque[tuple[int, Saved | Passed]] = deque()
        self.mirrored = Mirrored()
        self._sent = 0

    def send_logged(self, message: Saved | Passed) -> int:
        self._sent += 1
        self.under_way.append((self._sent, message))
        assert len(self.under_way) <= IN_FLIGHT_MAX
        return self._sent

    def deliver(self, mirror: Mirror, now: float, count: int = 10**6) -> None:
        while self.under_way and count:
            count -= 1
            number, message = self.under_way.popleft()
            packed = message.pack()
            self.mirrored.receive(type(message).parse(packed), now)
            mirror.on_delivered(number, now)


def mirror_of(series: Series) -> tuple[Mirror, Standby]:
    standby = Standby()
    return Mirror(cast(Link, standby), series, 5.0), standby


def long(number: int) -> Logged:
    """Return a message that is as long as a part."""
    points = [(number % 3, step, 0, 1.0) for step in range(POINTS_MAX)]
    names = tuple(f"{at}.{name}" for at in range(number % 3 + 1) for name in ("series",))
    return Logged(number, names, pack_points([(0, *point[1:]) for point in points]), 0)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_standby_has_what_there_was_and_what_came_since(count: int) -> None:
    series = Series()
    if count:
        for number in range(1, 10 * count):
            series.add(0, WORKERS[0], long(number), 100.0 * number)
    mirror, standby = mirror_of(series)
    assert len(packed(series, 5.0)) > PART_BYTES or count < 5
    for number in (100, 101):
        said = one(number, number)
        assert series.add(1, WORKERS[1], said, 10.0)
        mirror.pass_on(1, WORKERS[1], said, 10.0)
    more = histograms(1, 7, "weight")
    series.add_histograms(1, WORKERS[1], more, 10.0, (0, 1))
    mirror.pass_on(1, WORKERS[1], more, 10.0)
    standby.deliver(mirror, 10.0)

    there = standby.mirrored.series
    assert there is not None
    assert buckets_in(there).keys() == buckets_in(series).keys()
    assert [[b.mean for b in e] for e in buckets_in(there).values()] == [
        [b.mean for b in e] for e in buckets_in(series).values()
    ]
    assert there.taken == series.taken
    assert shown_in(there).keys() == shown_in(series).keys()


def test_a_standby_that_is_too_slow_is_sent_all_of_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror_module, "WAITING_BYTES_MAX", 1_000)
    series = Series()
    mirror, standby = mirror_of(series)
    for number in range(1, 200):
        said = one(number, number)
        series.add(0, WORKERS[0], said, float(number))
        mirror.pass_on(0, WORKERS[0], said, float(number))
        assert mirror._waiting_bytes <= 1_000
        standby.deliver(mirror, float(number), number % 2 if number < 20 else 0)
    assert len(standby.under_way) == IN_FLIGHT_MAX

    standby.deliver(mirror, 200.0)

    assert standby.mirrored.series is not None
    assert content(standby.mirrored.series) == content(series)


def test_what_is_passed_on_before_anything_was_saved_is_refused() -> None:
    said = Passed(0, WORKERS[0], int(Logged.KIND), one(1, 1).pack())
    with pytest.raises(InvalidMessageError, match="before"):
        Mirrored().receive(said, 1.0)
