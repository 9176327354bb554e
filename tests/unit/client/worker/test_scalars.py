"""What a worker logs, until its master has it."""

from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.exchanges.logged_messages import EVERY_SECONDS, MESSAGES_PER_SECOND
from gradwire.worker.exchanges.scalars import WAITING_MAX, LoggedScalars
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.scalars import POINTS_MAX, SERIES_MAX, Logged


class Connection:
    """As much of a `Link` as is needed."""

    def __init__(self) -> None:
        self.sent: list[Logged] = []

    def send_logged(self, logged: Logged) -> int:
        self.sent.append(logged)
        return len(self.sent) - 1


class Side:
    """A worker's scalars, and its connections."""

    def __init__(self) -> None:
        self.now = 100.0
        self.link: Connection | None = Connection()
        self.workers = 2
        self.scalars = LoggedScalars(
            lambda: cast(Link, self.link) if self.link else None, lambda: self.workers
        )

    def log(self, step: int, **values: float) -> bool:
        is_woken = self.scalars.add(step, values, self.now)
        if is_woken:
            self.scalars.wake(self.now)
        return is_woken

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.scalars.handle_timer(self.now)

    @property
    def sent(self) -> list[Logged]:
        assert self.link is not None
        return self.link.sent


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
        assert side.log(step, loss=1.0) is (step == 2), "woken once"
        side.wait(0.01)
    assert steps_in(side.sent) == [1]
    side.wait(EVERY_SECONDS)

    assert steps_in(side.sent) == list(range(1, 20))
    assert len(side.sent) == 2
    assert side.scalars.next_timer() is None
    points = side.sent[1].array
    assert points["age"][0] > points["age"][-1] >= 1000 * EVERY_SECONDS - 1


def test_many_workers_send_more_seldom() -> None:
    side = Side()
    side.workers = 10 * MESSAGES_PER_SECOND
    side.log(1, loss=4.0)
    side.wait(0)
    side.log(2, loss=3.0)
    side.wait(9.9)
    assert steps_in(side.sent) == [1]
    side.wait(0.2)
    assert steps_in(side.sent) == [1, 2]


def test_a_message_names_what_is_in_it() -> None:
    side = Side()
    side.log(1, loss=4.0, rate=0.5)
    side.wait(0)
    side.log(2, rate=0.25)
    side.wait(EVERY_SECONDS)

    assert [message.names for message in side.sent] == [("loss", "rate"), ("rate",)]
    assert side.sent[1].array["value"].tolist() == [0.25]


def test_what_a_lost_connection_had_under_way_is_sent_again_as_it_was() -> None:
    side = Side()
    side.log(1, loss=4.0)
    side.wait(0)
    side.log(2, loss=3.0)
    side.wait(EVERY_SECONDS)
    side.scalars.on_delivered(0)
    lost = side.sent[1]
    side.scalars.start_over()
    side.link = None
    side.log(3, loss=2.0)
    side.wait(5)
    assert side.scalars.next_timer() is None

    side.link = Connection()
    side.wait(EVERY_SECONDS)
    side.wait(EVERY_SECONDS)

    assert side.sent[0].array["value"].tolist() == lost.array["value"].tolist() == [3.0]
    assert steps_in(side.sent) == [2, 3]
    assert [message.number for message in side.sent] == [2, 3]


def test_a_master_that_takes_nothing_is_sent_two_messages() -> None:
    side = Side()
    for step in range(10):
        side.log(step, loss=1.0)
        side.wait(EVERY_SECONDS)
    assert len(side.sent) == 2

    side.scalars.on_delivered(1)
    side.wait(EVERY_SECONDS)

    assert len(side.sent) == 3
    assert steps_in(side.sent) == list(range(10))


@given(rate=st.integers(1, 3), series=st.integers(1, 3))
def test_what_comes_too_fast_is_thinned_out_and_counted(rate: int, series: int) -> None:
    side = Side()
    steps = rate * WAITING_MAX
    for step in range(steps):
        side.log(step, **{f"s{step % series}": 1.0})
        assert len(side.scalars._waiting) <= WAITING_MAX
    for _ in range(10):
        side.wait(EVERY_SECONDS)
        side.scalars.on_delivered(len(side.sent) - 1)

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
    many: dict[str, Any] = {f"s{i}": 1.0 for i in range(SERIES_MAX + 3)}
    side.log(1, **many)
    side.log(2, s0=2.0)
    side.wait(0)

    [message] = side.sent
    assert len(message.names) == SERIES_MAX
    assert message.dropped == side.scalars.dropped == 3
    assert message.array["value"][-1] == 2.0


def test_at_the_end_all_that_waits_is_sent() -> None:
    side = Side()
    for step in range(3 * POINTS_MAX // 2):
        side.log(step, loss=1.0)
    side.wait(0)
    lost, side.link = side.link, Connection()
    side.scalars.start_over()
    side.scalars.flush(side.now)

    assert lost is not None
    assert steps_in(side.sent) == list(range(3 * POINTS_MAX // 2))


def test_what_is_sent_again_is_as_old_as_it_is() -> None:
    side = Side()
    side.log(1, loss=1.0)
    side.wait(0.25)
    side.scalars.start_over()
    side.wait(60.0)

    assert [message.array["age"].tolist() for message in side.sent] == [[250], [60_250]]
    assert side.sent[0].number == side.sent[1].number
