"""The histograms of a worker, until its master has them."""

from typing import cast

from gradwire.worker.exchanges.histograms import LoggedHistograms
from gradwire.worker.exchanges.logged_messages import EVERY_SECONDS
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.histograms import Histograms


class Connection:
    """As much of a `Link` as is needed."""

    def __init__(self) -> None:
        self.sent: list[Histograms] = []

    def send_logged(self, logged: Histograms) -> int:
        self.sent.append(logged)
        return len(self.sent) - 1


class Side:
    """A worker's histograms, and its connections."""

    def __init__(self) -> None:
        self.now = 100.0
        self.link: Connection | None = Connection()
        self.histograms = LoggedHistograms(
            lambda: cast(Link, self.link) if self.link else None, lambda: 1
        )

    def make(self, step: int) -> None:
        """Make histograms of a step, if there is room."""
        if self.histograms.has_room():
            self.histograms.put(step, 1, ("weight",), b"", self.now)
            self.histograms.wake(self.now)
        else:
            self.histograms.leave_out()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.histograms.handle_timer(self.now)

    @property
    def said(self) -> list[tuple[int, int, int, int]]:
        """Of each message over this connection: its number, step, age, and what was left out."""
        assert self.link is not None
        return [(each.number, each.step, each.age, each.dropped) for each in self.link.sent]


def test_one_message_a_second_is_sent_and_what_is_due_meanwhile_is_left_out() -> None:
    side = Side()
    assert side.histograms.next_timer() is None
    side.make(1)
    side.wait(0)
    side.histograms.on_delivered(0)
    for step in range(2, 5):
        side.wait(0.25)
        side.make(step)
    side.wait(0.25)
    side.histograms.on_delivered(1)
    side.make(5)
    for number in (2, 3):
        side.wait(EVERY_SECONDS)
        side.histograms.on_delivered(number)

    assert side.said == [(1, 1, 0, 0), (2, 2, 750, 0), (3, 3, 1500, 0), (4, 5, 2000, 1)]
    assert side.histograms.dropped == 1
    assert side.histograms.next_timer() is None


def test_one_message_is_under_way_and_two_wait() -> None:
    side = Side()
    for step in range(1, 7):
        side.make(step)
        side.wait(EVERY_SECONDS)
    assert [step for _, step, _, _ in side.said] == [1]
    assert side.histograms.next_timer() is None

    side.histograms.on_delivered(0)
    side.wait(0)

    assert side.said[1:] == [(2, 2, 5000, 0)]
    assert side.histograms.dropped == 3


def test_what_a_lost_connection_had_under_way_is_sent_again_and_older() -> None:
    side = Side()
    side.make(1)
    side.wait(0)
    side.histograms.start_over()
    side.link = None
    side.make(2)
    side.wait(60)
    side.make(3)
    side.make(4)
    assert side.histograms.next_timer() is None

    side.link = Connection()
    side.wait(0)

    assert side.said == [(1, 1, 60_000, 0), (2, 2, 60_000, 0)]
    assert side.histograms.dropped == 1


def test_at_the_end_all_that_waits_is_sent() -> None:
    side = Side()
    side.make(1)
    side.wait(0)
    side.make(2)
    side.make(3)
    side.histograms.flush(side.now)

    assert [step for _, step, _, _ in side.said] == [1, 2, 3]
