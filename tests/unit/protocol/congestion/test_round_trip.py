"""The round trip without a queue: the minimum of some seconds, or a quiet sample."""

from math import inf

import pytest

from gradwire_protocol.congestion.round_trip import (
    LONGEST_ROUNDS,
    QUEUED,
    VALID_ROUND_TRIPS,
    VALID_SECONDS,
    RoundTrip,
)


def test_the_minimum_is_the_shortest_sample() -> None:
    trip = RoundTrip()
    assert trip.minimum == inf
    assert not trip.is_outdated(1000.0)

    for rtt in (0.2, 0.1, 0.3):
        trip.on_sample(rtt, 0.0, False, 0, now=1.0)

    assert trip.minimum == 0.1


@pytest.mark.parametrize(
    ("samples", "valid_until"),
    [
        pytest.param([(0.1, 1.0), (0.2, 2.0)], 1.0 + VALID_SECONDS, id="too old"),
        pytest.param([(0.75, 1.0)], 1.0 + VALID_ROUND_TRIPS * 0.75, id="a long round trip"),
        pytest.param([(0.1, 1.0), (0.1, 2.0)], 2.0 + VALID_SECONDS, id="renewed by one as short"),
    ],
)
def test_a_minimum_is_outdated_after_a_while(
    samples: list[tuple[float, float]], valid_until: float
) -> None:
    trip = RoundTrip()
    for rtt, now in samples:
        trip.on_sample(rtt, 0.0, False, 0, now=now)

    assert not trip.is_outdated(valid_until)
    assert trip.is_outdated(valid_until + 0.1)


def test_the_shortest_quiet_sample_takes_the_place_of_an_old_minimum() -> None:
    trip = RoundTrip()
    trip.on_sample(0.1, 0.0, True, 0, now=1.0)
    for rtt in (0.14, 0.12, 0.13):
        trip.on_sample(rtt, 0.0, True, 0, now=2.0)
    assert trip.minimum == 0.1

    assert not trip.is_outdated(1.1 + VALID_SECONDS)
    assert trip.minimum == 0.12
    assert trip.is_outdated(1.2 + 2 * VALID_SECONDS)


def test_measuring_renews_the_minimum_even_where_nothing_was_measured() -> None:
    trip = RoundTrip()
    trip.on_sample(0.1, 0.0, False, 0, now=1.0)

    trip.renew(now=9.0)

    assert trip.minimum == 0.1
    assert not trip.is_outdated(9.0 + VALID_SECONDS)


@pytest.mark.parametrize(
    ("samples", "queued", "unqueued"),
    [
        ([0.1], False, True),
        ([0.1 * QUEUED, 0.102], False, True),
        ([0.2, 0.1, 0.2], False, False),
        ([0.1 * QUEUED + 0.001, 0.2], True, False),
    ],
)
def test_a_round_has_a_queue_where_its_shortest_round_trip_is_longer(
    samples: list[float], queued: bool, unqueued: bool
) -> None:
    trip = RoundTrip()
    trip.on_sample(0.1, 0.0, False, 0, now=1.0)
    trip.end_round()

    for rtt in samples:
        trip.on_sample(rtt, 0.0, False, 0, now=2.0)

    assert trip.queued == queued
    assert trip.unqueued == unqueued


def test_a_round_without_a_sample_shows_no_queue() -> None:
    trip = RoundTrip()
    trip.on_sample(0.1, 0.0, False, 0, now=1.0)
    trip.end_round()

    assert not trip.queued


def test_a_queue_is_full_in_the_upper_half_of_what_it_was_in_the_last_rounds() -> None:
    trip = RoundTrip()
    for rtt in (0.1, 0.2):
        trip.on_sample(rtt, 0.0, False, 0, now=1.0)

    assert trip.shows_full_queue(0.16)
    assert not trip.shows_full_queue(0.14)

    trip.on_sample(0.12, 0.0, False, LONGEST_ROUNDS, now=2.0)
    assert trip.shows_full_queue(0.12)
    assert not trip.shows_full_queue(0.1 * QUEUED), "that is no queue"
