"""The pacer: never more than a burst above the rate, and never slower than it."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.limits import TRAIN_BYTES_MAX
from gradwire_protocol.recovery.pacer import BURST_SECONDS, WAIT_SECONDS_MIN, Pacer

SIZE = 1000
LEAST = 2 * SIZE
START = 1000.0


def departures(
    pacer: Pacer, sizes: list[int], rates: list[float], start: float = START
) -> list[tuple[float, int]]:
    """Send as early as the pacer lets packets go; return when they left, and their sizes."""
    now, left = start, []
    for i, size in enumerate(sizes):
        rate = rates[i % len(rates)]
        while pacer.allowance(rate, now) < min(size, LEAST):
            later = pacer.ready_at(min(size, LEAST), rate, now)
            assert later > now, "a timer that does not move would spin"
            now = later
        pacer.on_sent(size)
        left.append((now, size))
    return left


def at(left: list[tuple[float, int]], now: float) -> int:
    return sum(size for then, size in left if then == now)


def test_at_a_high_rate_more_leaves_at_once_so_that_coarse_timers_keep_up() -> None:
    left = departures(Pacer(LEAST), [SIZE] * 1000, [1e8])

    assert at(left, START) == BURST_SECONDS * 1e8


def test_a_pause_saves_up_no_more_than_a_burst() -> None:
    pacer = Pacer(LEAST)
    departures(pacer, [SIZE] * 50, [1e5])

    left = departures(pacer, [SIZE] * 50, [1e5], start=START + 1000)

    assert at(left, START + 1000) == LEAST


def test_where_the_least_grows_more_may_leave_at_once() -> None:
    pacer = Pacer(LEAST)
    pacer.least_bytes = 10 * LEAST

    assert pacer.allowance(1e5, START) == 10 * LEAST


def test_without_a_rate_a_whole_train_may_always_leave() -> None:
    pacer = Pacer(LEAST)

    for _ in range(3):
        assert pacer.allowance(inf, START) == TRAIN_BYTES_MAX
        pacer.on_sent(TRAIN_BYTES_MAX)


def test_no_wait_is_shorter_than_is_worth_a_timer() -> None:
    pacer = Pacer(LEAST)
    pacer.allowance(1e9, START)

    assert pacer.ready_at(SIZE, 1e9, START) == START + WAIT_SECONDS_MIN


@given(rate=st.floats(1e3, 1e10), start=st.floats(0, 1e5), size=st.integers(1, LEAST))
def test_whoever_comes_back_when_told_may_send(rate: float, start: float, size: int) -> None:
    pacer = Pacer(LEAST)
    pacer.on_sent(pacer.allowance(rate, start))

    assert pacer.allowance(rate, pacer.ready_at(size, rate, start)) >= size


@given(
    sizes=st.lists(st.integers(60, LEAST), min_size=2, max_size=100),
    rates=st.lists(st.floats(1e3, 1e10), min_size=1, max_size=5),
)
def test_in_no_window_more_leaves_than_rate_and_burst_allow(
    sizes: list[int], rates: list[float]
) -> None:
    """The fastest of the rates is what counts, where they change."""
    left = departures(Pacer(LEAST), sizes, rates)

    rate = max(rates)
    burst = max(LEAST, rate * BURST_SECONDS)
    for i, (begin, _) in enumerate(left):
        total = 0
        for end, size in left[i:]:
            total += size
            # A clock of 1000 seconds resolves 1e-13.
            assert total <= burst + rate * (end - begin + 1e-11) + 1


@given(sizes=st.lists(st.integers(60, LEAST), min_size=1, max_size=100), rate=st.floats(1e3, 1e8))
def test_whoever_waits_as_told_is_as_fast_as_the_rate(sizes: list[int], rate: float) -> None:
    """Timers that are not worth it make trains longer, and nothing later than by one of them."""
    left = departures(Pacer(LEAST), sizes, [rate])

    took = left[-1][0] - START
    assert took <= sum(sizes) / rate + WAIT_SECONDS_MIN + len(sizes) / rate + 1e-9
