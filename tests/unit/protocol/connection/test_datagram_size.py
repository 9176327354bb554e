"""Datagram sizes: how large they can be is found out, and found out again when it changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.connection.datagram_size import (
    BLACK_HOLE_BURSTS,
    BLACK_HOLE_SECONDS,
    SEARCH_AGAIN_SECONDS,
    SIZES,
    TRIES,
    DatagramSizes,
)
from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN

NOW = 1000.0
RTT = 0.125


def search(sizes: DatagramSizes, carries: int, now: float = NOW) -> list[int]:
    """Probe a path until the search is over for now; return what was tried."""
    tried = []
    while size := sizes.probe_to_send(now):
        assert sizes.probe_to_send(now) == 0, "one at a time"
        assert sizes.next_timer is None, "while one is under way there is nothing to wait for"
        tried.append(size)
        if size <= carries:
            assert sizes.on_probe_acked(size)
            assert sizes.current == size
        else:
            before = sizes.current
            sizes.on_probe_lost(now)
            assert sizes.current == before
    return tried


# The search.


def test_every_size_is_tried_up_to_the_limit_one_after_the_other() -> None:
    sizes = DatagramSizes(1200, 8900)

    tried = search(sizes, carries=8900)

    assert tried == [1400, 1452, 4000, 8900] == [*SIZES[1:]]
    assert sizes.current == 8900
    assert sizes.next_timer is None, "the search is over"


def test_a_size_is_given_up_after_three_tries_and_tried_again_after_ten_minutes() -> None:
    sizes = DatagramSizes(1400, 8900)

    first = search(sizes, carries=1460)
    early = search(sizes, carries=9000, now=NOW + SEARCH_AGAIN_SECONDS - 0.001)
    timer = sizes.next_timer
    later = search(sizes, carries=9000, now=NOW + SEARCH_AGAIN_SECONDS)

    assert first == [1452, *[4000] * TRIES]
    assert early == []
    assert timer == NOW + SEARCH_AGAIN_SECONDS == NOW + 600
    assert later == [4000, 8900]


def test_a_probe_that_was_only_late_counts() -> None:
    sizes = DatagramSizes(1400, 4000)
    sizes.probe_to_send(NOW)
    sizes.on_probe_lost(NOW)

    assert sizes.on_probe_acked(1452)
    assert not sizes.on_probe_acked(1452), "it is in use already"

    assert sizes.current == 1452


def test_on_another_path_the_search_begins_anew() -> None:
    sizes = DatagramSizes(1400, 8900)
    search(sizes, carries=5000)
    assert sizes.current == 4000

    sizes.on_path_changed()

    assert sizes.current == 1400
    assert sizes.next_timer == 0.0
    assert search(sizes, carries=1300) == [1452] * TRIES


@given(
    start=st.integers(DATAGRAM_BYTES_MIN // 4, DATAGRAM_BYTES_MAX // 4),
    limit=st.integers(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX),
    carries=st.integers(DATAGRAM_BYTES_MIN, 2 * DATAGRAM_BYTES_MAX),
)
def test_whatever_both_sides_want_sizes_are_whole_words_and_what_the_path_carries(
    start: int, limit: int, carries: int
) -> None:
    """A peer may say any limit; it would drop what is larger, and packets are whole words."""
    sizes = DatagramSizes(4 * start, limit)
    begun = sizes.current

    tried = search(sizes, carries)

    assert all(size % 4 == 0 and begun < size <= limit for size in tried)
    assert sizes.current % 4 == 0
    assert begun <= sizes.current <= max(begun, min(limit, carries))
    larger = [size for size in SIZES if sizes.current < size <= min(limit, carries)]
    assert larger == []


# Black holes.


def hole(sizes: DatagramSizes, now: float = NOW) -> list[bool]:
    """Let so many bursts of losses happen as make a black hole."""
    return [sizes.on_lost(1400, RTT, now + i * RTT) for i in range(BLACK_HOLE_BURSTS)]


@pytest.mark.parametrize(
    ("smallest", "arrives", "found"),
    [
        pytest.param(1400, None, [False, False, True], id="only large packets are lost"),
        pytest.param(1400, DATAGRAM_BYTES_MIN, [False, False, True], id="small ones arrive"),
        pytest.param(1400, 1400, [False] * 3, id="large ones arrive in between"),
        pytest.param(DATAGRAM_BYTES_MIN, None, [False] * 3, id="small packets are lost too"),
    ],
)
def test_three_bursts_in_which_only_large_packets_were_lost_are_a_black_hole(
    smallest: int, arrives: int | None, found: list[bool]
) -> None:
    sizes = DatagramSizes(1400, 8900)

    seen = []
    for i in range(BLACK_HOLE_BURSTS):
        seen.append(sizes.on_lost(smallest, RTT, NOW + i * RTT))
        if arrives is not None:
            sizes.on_acked(arrives)

    assert seen == found
    assert sizes.current == (DATAGRAM_BYTES_MIN if any(found) else 1400)


def test_after_a_black_hole_the_search_begins_a_minute_later() -> None:
    sizes = DatagramSizes(1400, 1452)
    search(sizes, carries=1452)
    hole(sizes)
    found = NOW + (BLACK_HOLE_BURSTS - 1) * RTT

    assert search(sizes, carries=1452, now=found + BLACK_HOLE_SECONDS - 0.001) == []
    assert sizes.next_timer == found + BLACK_HOLE_SECONDS == found + 60
    assert search(sizes, carries=1452, now=found + BLACK_HOLE_SECONDS) == [1400, 1452]


def test_what_is_found_lost_within_a_round_trip_is_one_burst() -> None:
    sizes = DatagramSizes(1400, 1400)

    found = [sizes.on_lost(1400, RTT, NOW + n * RTT / 100) for n in range(200)]
    assert not any(found), "two bursts"

    assert sizes.on_lost(1400, RTT, NOW + 2 * RTT)


def test_what_is_still_lost_of_the_large_packets_is_no_further_black_hole() -> None:
    sizes = DatagramSizes(1400, 1400)
    hole(sizes)

    assert hole(sizes, now=NOW + 10) == [False] * BLACK_HOLE_BURSTS
    assert sizes.next_timer == NOW + (BLACK_HOLE_BURSTS - 1) * RTT + BLACK_HOLE_SECONDS
