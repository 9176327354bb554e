"""The pacer: never more than a burst above the rate, and never slower than it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.pacer import BURST_PACKETS_MIN, BURST_SECONDS, Pacer

SIZE = 1000


def departures(pacer: Pacer, n: int, rate: float, start: float) -> list[float]:
    """Send `n` packets as early as the pacer lets them go; return when they left."""
    now, left = start, []
    for _ in range(n):
        now = pacer.ready_at(SIZE, rate, now)
        assert pacer.ready_at(SIZE, rate, now) == now, "what is ready stays ready"
        pacer.on_sent(SIZE)
        left.append(now)
    return left


def test_the_first_packets_leave_at_once() -> None:
    left = departures(Pacer(SIZE), BURST_PACKETS_MIN + 1, rate=1e5, start=1000.0)

    assert left[:-1] == [1000.0] * BURST_PACKETS_MIN
    assert left[-1] == pytest.approx(1000.0 + SIZE / 1e5)


def test_at_a_high_rate_more_leaves_at_once_so_that_coarse_timers_keep_up() -> None:
    pacer, rate = Pacer(SIZE), 1e8
    departures(pacer, BURST_PACKETS_MIN, rate, start=1000.0)

    left = departures(pacer, 1000, rate, start=1001.0)

    assert left.count(1001.0) == BURST_SECONDS * rate / SIZE


def test_a_pause_saves_up_no_more_than_a_burst() -> None:
    pacer = Pacer(SIZE)
    departures(pacer, 50, rate=1e5, start=1000.0)

    left = departures(pacer, 50, rate=1e5, start=2000.0)

    assert left.count(2000.0) == BURST_PACKETS_MIN


@given(rate=st.floats(1e3, 1e9), n=st.integers(1, 200))
def test_over_any_time_the_rate_is_kept(rate: float, n: int) -> None:
    left = departures(Pacer(SIZE), n, rate, start=1000.0)

    took = left[-1] - left[0]
    burst = max(BURST_PACKETS_MIN * SIZE, rate * BURST_SECONDS)
    # A clock of 1000 seconds resolves 1e-13.
    assert n * SIZE <= burst + rate * (took + n * 1e-12) + 1
    assert took <= n * SIZE / rate + 1e-9


def test_a_packet_too_early_is_told_when_to_come_back() -> None:
    pacer = Pacer(SIZE)
    departures(pacer, BURST_PACKETS_MIN, rate=1e5, start=1000.0)

    assert pacer.ready_at(SIZE, 1e5, now=1000.0) == pytest.approx(1000.01)
    assert pacer.ready_at(SIZE, 1e5, now=1000.004) == pytest.approx(1000.01)
    assert pacer.ready_at(SIZE, 1e5, now=1000.01) == 1000.01
