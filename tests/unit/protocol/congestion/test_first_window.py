"""FirstWindow: how much of it there is, and how fast it leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.congestion.controller import WINDOW_PACKETS_INITIAL, WINDOW_PACKETS_MIN
from gradwire_protocol.congestion.first_window import (
    BEGINNING_PACKETS,
    BURST_PACKETS,
    PACKETS_MIN,
    SPREAD,
    FirstWindow,
)

DATAGRAM = 1_000
GAIN = 2.0
RTT = 0.05


def window(packets: int = WINDOW_PACKETS_INITIAL, random: float = 0.5) -> FirstWindow:
    return FirstWindow(packets, DATAGRAM, lambda: random)


@pytest.mark.parametrize(("rtt", "packets"), [(0.02, 32), (0.01, 32), (0.005, 16), (0.001, 10)])
def test_on_a_short_path_it_has_fewer_packets(rtt: float, packets: int) -> None:
    assert window().packets(rtt) == packets


@given(st.floats(1e-6, 10.0), st.integers(WINDOW_PACKETS_MIN, PACKETS_MIN - 1))
def test_a_smaller_one_is_the_same_on_every_path(rtt: float, packets: int) -> None:
    assert window(packets).packets(rtt) == packets


@given(st.floats(0.0, 1.0, exclude_max=True))
def test_it_takes_a_round_trip_more_or_less_but_not_its_first_packets(random: float) -> None:
    first = window(random=random)
    first.set_rates(32 * DATAGRAM, RTT, GAIN, 0.0)

    few = (BURST_PACKETS - 1) * DATAGRAM
    assert first.rate(few, DATAGRAM) == pytest.approx(GAIN * 32 * DATAGRAM / RTT)
    seconds = 32 * DATAGRAM / first.rate(BURST_PACKETS * DATAGRAM, DATAGRAM)
    assert RTT / (1 + SPREAD) <= seconds <= RTT / (1 - SPREAD)


def test_a_higher_rate_counts_for_all_packets() -> None:
    first = window()

    first.set_rates(32 * DATAGRAM, RTT, GAIN, 1e9)

    assert first.rate(0, DATAGRAM) == first.rate(100 * DATAGRAM, DATAGRAM) == 1e9


def test_after_the_beginning_all_of_it_leaves_fast_and_is_the_same_on_every_path() -> None:
    first = window()
    first.acked = BEGINNING_PACKETS * DATAGRAM - 1
    lasted = first.lasts

    first.acked += 1

    first.set_rates(32 * DATAGRAM, RTT, GAIN, 0.0)
    assert (lasted, first.lasts) == (True, False)
    assert first.packets(0.001) == WINDOW_PACKETS_INITIAL
    rate = pytest.approx(GAIN * 32 * DATAGRAM / RTT)
    assert first.rate(0, DATAGRAM) == first.rate(100 * DATAGRAM, DATAGRAM) == rate


def test_it_is_halved_down_to_the_smallest_window() -> None:
    first = window()

    sizes = []
    while first.halve():
        sizes.append(first.packets(1.0))

    assert sizes == [16, 8, WINDOW_PACKETS_MIN]
