"""What a worker logs, until its master has it."""

from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.scalars import (
    EVERY_SECONDS,
    LAST_SECONDS_MAX,
    MESSAGES_PER_SECOND,
    WAITING_MAX,
    LoggedScalars,
)
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.logged.histograms import Histograms
from gradwire_protocol.messages.logged.scalars import POINTS_MAX, SERIES_MAX, Logged


class Side:
    """A worker's scalars, and as much of its link as is needed."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now
        self.is_live = True
        self.workers = 2
        self.sent: list[Logged] = []
        self.histograms: list[Histograms] = []
        self.scalars = LoggedScalars(
            lambda: cast(Link, self) if self.is_live else None, lambda: self.workers
        )

    def send_logged(self, logged: Logged | Histograms) -> None:
        if isinstance(logged, Histograms):
            self.histograms.append(logged)
        else:
            self.sent.append(logged)

    @property
    def messages(self) -> int:
        """How many were sent."""
        return len(self.sent) + len(self.histograms)

    def log(self, step: int, **values: float) -> bool:
        is_woken = self.scalars.add(step, values, self.now)
        if is_woken:
            self.scalars.wake(self.now)
        return is_woken

    def look(self, step: int) -> None:
        """Hand over histograms of a step."""
        if self.scalars.put_histograms(step, ("weight",), b""):
            self.scalars.wake(self.now)

    def wait(self, seconds: float, *, delivers: bool = True) -> None:
        """Let time go on; what is sent then is delivered at once, or not."""
        self.now += seconds
        before = self.messages
        self.scalars.handle_timer(self.now)
        if delivers and self.messages > before:
            self.scalars.on_delivered(self.now)


def steps_in(messages: list[Logged]) -> list[int]:
    return [step for message in messages for step in message.array["step"].tolist()]


def test_the_first_goes_at_once_and_the_rest_together_a_second_later() -> None:
    side = Side()
    assert side.scalars.next_timer() is None
    assert side.log(1, loss=4.0)
    assert side.scalars.next_timer() == side.now
    side.wait(0)
    assert steps_in(side.sent) == [1]

    for step in range(2, 20):
        assert side.log(step, loss=1.0, rate=0.5) is (step == 2), "woken once"
        side.wait(0.01)
    side.wait(EVERY_SECONDS)

    assert [message.names for message in side.sent] == [("loss",), ("loss", "rate")]
    assert steps_in(side.sent) == [1, *(step for step in range(2, 20) for _ in range(2))]
    assert side.scalars.next_timer() is None
    ages = side.sent[1].array["age"]
    assert ages[0] > ages[-1] >= 1000 * EVERY_SECONDS - 1


@given(st.integers(-(10**6), 10**6))
def test_what_is_sent_does_not_depend_on_what_the_clock_of_the_worker_says(hours: int) -> None:
    """Ages travel, and no times: the master places them by its own clock."""
    sides = Side(0.0), Side(3600.0 * hours)
    for side in sides:
        for step, seconds in ((1, 0.0), (2, 0.25), (3, 4.5), (4, 0.0)):
            side.log(step, loss=1.0)
            side.wait(seconds, delivers=step < 4)
        side.scalars.start_over()
        side.wait(60.0)

    assert sides[0].sent == sides[1].sent
    assert len(sides[0].sent) > 2


def test_many_workers_send_more_seldom() -> None:
    side = Side()
    side.workers = 10 * MESSAGES_PER_SECOND
    for step, seconds in ((1, 0), (2, 9.9)):
        side.log(step, loss=1.0)
        side.wait(seconds)
    assert steps_in(side.sent) == [1]
    side.wait(0.2)
    assert steps_in(side.sent) == [1, 2]


def test_one_message_is_under_way_at_most() -> None:
    side = Side()
    for step in range(10):
        side.log(step, loss=1.0)
        side.wait(EVERY_SECONDS, delivers=False)
    assert steps_in(side.sent) == [0]
    assert side.scalars.next_timer() is None

    side.scalars.on_delivered(side.now)
    side.wait(0)

    assert steps_in(side.sent) == list(range(10))


def test_what_a_lost_connection_had_under_way_is_sent_again_as_it_was() -> None:
    side = Side()
    side.log(1, loss=4.0)
    side.wait(0.25, delivers=False)
    side.scalars.start_over()
    side.is_live = False
    side.log(3, loss=2.0)
    side.wait(60.0)
    assert side.scalars.next_timer() is None

    side.is_live = True
    side.wait(0)
    side.wait(EVERY_SECONDS)

    assert [message.number for message in side.sent] == [1, 1, 2]
    assert steps_in(side.sent) == [1, 1, 3]
    assert [message.array["age"].tolist() for message in side.sent[:2]] == [[250], [60_250]]


@given(rate=st.integers(1, 3), series=st.integers(1, 3))
def test_what_comes_too_fast_is_thinned_out_and_counted(rate: int, series: int) -> None:
    side = Side()
    side.is_live = False
    steps = rate * WAITING_MAX
    for step in range(steps):
        side.log(step, **{f"s{step % series}": 1.0})
        assert len(side.scalars._waiting) <= WAITING_MAX
    side.is_live = True
    for _ in range(10):
        side.wait(EVERY_SECONDS)

    sent = steps_in(side.sent)
    assert sent == sorted(set(sent))
    assert all(len(message.array) <= POINTS_MAX for message in side.sent)
    assert len(sent) + side.scalars.dropped == steps
    assert sum(message.dropped for message in side.sent) == side.scalars.dropped
    assert len(sent) >= WAITING_MAX // 2
    # What is left covers the whole time, and not its end.
    assert sent[0] < series
    assert max(b - a for a, b in pairwise(sent)) <= 8 * series


def test_names_beyond_the_limit_are_dropped_and_the_others_stay() -> None:
    side = Side()
    side.log(1, **{f"s{i}": 1.0 for i in range(SERIES_MAX + 3)})
    side.log(2, s0=2.0)
    side.wait(0)

    [message] = side.sent
    assert len(message.names) == SERIES_MAX
    assert message.dropped == side.scalars.dropped == 3
    assert message.array["value"][-1] == 2.0


def test_a_worker_leaves_when_the_master_has_all_that_was_logged() -> None:
    side = Side()
    assert not side.scalars.holds_up(side.now)
    for step in range(3 * POINTS_MAX // 2):
        side.log(step, loss=1.0)

    waits = 0
    while side.scalars.holds_up(side.now):
        waits += 1
        side.scalars.on_delivered(side.now)

    assert waits == 2
    assert steps_in(side.sent) == list(range(3 * POINTS_MAX // 2))
    assert side.scalars.next_timer() is None


def test_a_worker_waits_no_longer_for_a_master_that_takes_nothing() -> None:
    side = Side()
    side.log(1, loss=1.0)
    assert side.scalars.holds_up(side.now)
    assert side.scalars.next_timer() == side.now + LAST_SECONDS_MAX
    side.wait(LAST_SECONDS_MAX, delivers=False)

    assert not side.scalars.holds_up(side.now)

    assert len(side.sent) == 1
    side.is_live = False
    assert not side.scalars.holds_up(side.now)


def test_a_message_that_only_counts_what_was_dropped_holds_up_nothing() -> None:
    side = Side()
    side.log(1, **{f"s{i}": 1.0 for i in range(SERIES_MAX)})
    side.wait(0)
    side.log(2, one_more=1.0)
    side.wait(EVERY_SECONDS)
    side.log(3, s0=3.0)
    side.wait(EVERY_SECONDS)

    assert [message.dropped for message in side.sent] == [0, 1, 0]
    assert steps_in(side.sent)[-1] == 3


# Histograms.


def test_of_histograms_the_newest_go_and_the_others_are_counted() -> None:
    side = Side()
    for step in range(5):
        side.look(step)
    side.wait(0, delivers=False)
    for step in range(5, 8):
        side.look(step)
        side.wait(EVERY_SECONDS, delivers=False)
    side.scalars.on_delivered(side.now)
    side.wait(0)

    assert [(each.number, each.step, each.dropped) for each in side.histograms] == [
        (1, 4, 4),
        (2, 7, 2),
    ]
    assert side.scalars.histograms_dropped == 6
    assert side.scalars.next_timer() is None


def test_histograms_and_scalars_take_turns_however_many_come() -> None:
    side = Side()
    for step in range(10):
        side.look(step)
        side.log(step, loss=1.0)
        side.wait(EVERY_SECONDS)

    assert len(side.sent) == len(side.histograms) == 5
    numbers = {each.number for each in side.sent} | {each.number for each in side.histograms}
    assert numbers == set(range(1, 11))


def test_histograms_of_a_lost_connection_are_sent_again_and_before_a_worker_leaves() -> None:
    side = Side()
    side.look(1)
    side.wait(0, delivers=False)
    side.scalars.start_over()
    side.wait(EVERY_SECONDS)
    assert [(each.number, each.step) for each in side.histograms] == [(1, 1), (1, 1)]

    side.look(2)
    side.log(2, loss=1.0)
    waits = 0
    while side.scalars.holds_up(side.now):
        waits += 1
        side.scalars.on_delivered(side.now)
    assert (waits, side.histograms[-1].step, steps_in(side.sent)) == (2, 2, [2])
