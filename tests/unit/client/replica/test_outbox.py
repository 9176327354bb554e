"""Updates become sparser where the line is slow for the steps, and only there."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.replica.outbox import (
    FALL_MAX,
    LEAST_BYTES,
    STEP_SHARE,
    UPDATES_BETWEEN,
    LineLimit,
    Outbox,
)
from gradwire.replica.stats import Tally
from gradwire.worker.membership import Membership
from support.wording import naming

STEP_SECONDS = 0.1


class Line:
    """A line that takes so many bytes in a second, and a worker that sends an update a step.

    Parameters
    ----------
    bytes_per_second : float
    full_bytes : int
        Of an update at a factor of 1.
    """

    def __init__(
        self,
        bytes_per_second: float,
        full_bytes: int,
        *,
        rtt: float = 0.0,
        step: float = STEP_SECONDS,
    ) -> None:
        self.bytes_per_second, self.full_bytes, self.rtt = bytes_per_second, full_bytes, rtt
        self.membership = Membership(1)
        self.tally = Tally()
        outbox: Any = SimpleNamespace(pace=round(1e6 * step))
        self.limit = LineLimit(
            self.membership, cast("Outbox", outbox), self.tally, lambda: self.rtt
        )

    @property
    def size(self) -> int:
        return round(self.full_bytes * self.limit.factor)

    @property
    def seconds(self) -> float:
        """How long an update takes to arrive."""
        return self.rtt + self.size / self.bytes_per_second

    def run(self, updates: int) -> float:
        for _ in range(updates):
            self.membership.on_delivered(self.size, self.seconds)
            self.limit.look()
        return self.limit.factor


@given(rate=st.floats(1e4, 1e9), full=st.integers(1_000, 2_000_000), rtt=st.floats(0.0, 0.3))
def test_an_update_takes_its_share_of_a_step_or_is_small_or_whole(
    rate: float, full: int, rtt: float
) -> None:
    line = Line(rate, full, rtt=rtt)

    line.run(80 * UPDATES_BETWEEN)

    fits = line.seconds - rtt <= 1.2 * STEP_SHARE * STEP_SECONDS
    assert fits or line.size <= LEAST_BYTES + 1
    assert line.limit.factor == 1.0 or line.seconds - rtt >= 0.5 * STEP_SHARE * STEP_SECONDS
    assert line.tally.line_factor == line.limit.factor


def test_a_small_update_is_left_alone_however_long_it_takes() -> None:
    assert Line(1e3, LEAST_BYTES).run(100) == 1.0


def test_a_round_trip_is_no_fault_of_the_size() -> None:
    assert Line(1e9, 1_000_000, rtt=0.3).run(100) == 1.0


def test_it_waits_for_updates_of_the_new_size_and_rises_again() -> None:
    line = Line(1e6, 100_000)
    assert line.run(UPDATES_BETWEEN - 1) == 1.0
    assert line.run(1) == FALL_MAX
    line.run(20 * UPDATES_BETWEEN)
    slow = line.limit.factor

    line.bytes_per_second = 1e9
    line.run(100 * UPDATES_BETWEEN)

    assert slow < 0.5
    assert line.limit.factor == 1.0


def test_without_a_pace_nothing_is_known_of_steps() -> None:
    assert Line(1e3, 1_000_000, step=0.0).run(100) == 1.0


def test_what_changes_by_much_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gradwire.session")

    Line(1e6, 1_000_000).run(100 * UPDATES_BETWEEN)

    assert len(caplog.messages) <= 3
    assert caplog.messages[0] == naming("bytes", "0.1 s", "faster line")
