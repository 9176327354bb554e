"""FirstWindow: how much of it there is, and how fast it leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.congestion.controller import WINDOW_PACKETS_INITIAL, WINDOW_PACKETS_MIN
from gradwire_protocol.congestion.first_window import (
    BEGINNING_PACKETS,
    BURST_PACKETS,
    FIRST_GAIN,
    PACKETS_MIN,
    SPREAD,
    FirstWindow,
)

DATAGRAM = 1_000
RTT = 0.05


def window(packets: int = WINDOW_PACKETS_INITIAL, random: float = 0.5) -> FirstWindow:
    return FirstWindow(packets, DATAGRAM, lambda: random)


@pytest.mark.parametrize(("rtt", "packets"), [(0.02, 32), (0.01, 32), (0.005, 16), (0.001, 10)])
def test_on_a_short_path_it_is_smaller(rtt: float, packets: int) -> None:
    assert window().bytes(rtt) == packets * DATAGRAM


@given(st.floats(1e-6, 10.0), st.integers(WINDOW_PACKETS_MIN, PACKETS_MIN - 1))
def test_a_small_one_is_the_same_on_every_path(rtt: float, packets: int) -> None:
    assert window(packets).bytes(rtt) == packets * DATAGRAM


@given(st.floats(0.0, 1.0, exclude_max=True))
def test_it_takes_a_round_trip_more_or_less_but_not_its_first_packets(random: float) -> None:
    first = window(random=random)
    first.set_rates(32 * DATAGRAM, RTT, 0.0)

    few = (BURST_PACKETS - 1) * DATAGRAM
    assert first.rate(few) == pytest.approx(FIRST_GAIN * 32 * DATAGRAM / RTT)
    seconds = 32 * DATAGRAM / first.rate(BURST_PACKETS * DATAGRAM)
    assert RTT / (1 + SPREAD) <= seconds <= RTT / (1 - SPREAD)


def test_a_higher_rate_counts_for_all_packets() -> None:
    first = window()

    first.set_rates(32 * DATAGRAM, RTT, 1e9)

    assert first.rate(0) == first.rate(100 * DATAGRAM) == 1e9


@given(st.lists(st.integers(1, 100_000), min_size=1))
def test_it_lasts_until_a_number_of_packets_have_arrived(acked: list[int]) -> None:
    first = window()

    for count, each in enumerate(acked, 1):
        so_far = sum(acked[:count])
        assert first.lasts_after(each) == (so_far < BEGINNING_PACKETS * DATAGRAM)


def test_with_datagrams_of_another_size_it_has_as_many() -> None:
    first = window()

    first.set_datagram_bytes(2 * DATAGRAM)

    assert first.bytes(1.0) == first.most_bytes == 2 * WINDOW_PACKETS_INITIAL * DATAGRAM
    assert first.bytes(0.001) == 2 * PACKETS_MIN * DATAGRAM


def test_it_is_halved_down_to_the_smallest_window() -> None:
    first = window()

    sizes = []
    while first.halve():
        sizes.append(first.bytes(1.0))

    assert sizes == [16 * DATAGRAM, 8 * DATAGRAM, WINDOW_PACKETS_MIN * DATAGRAM]
