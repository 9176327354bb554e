"""Delivery rates: what arrived, over the time it took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.congestion.delivery_rate import AckAggregation, DeliveryRate, WindowedMax

# The largest value of the last rounds.


@given(
    rounds=st.integers(1, 10),
    updates=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 100)), min_size=1),
)
def test_the_largest_value_of_the_last_rounds(rounds: int, updates: list[tuple[int, int]]) -> None:
    """Against all values in a list; the rounds go on by 0 to 4 between updates."""
    windowed = WindowedMax(rounds)
    now, values = 0, []

    for step, value in updates:
        now += step
        values.append((now, value))
        windowed.update(now, value)

        assert windowed.value == max(v for at, v in values if at > now - rounds)


# The delivery rate.

RTT = 0.1


def test_a_train_alone_shows_its_size_over_the_round_trip() -> None:
    delivery = DeliveryRate()
    departure = delivery.on_sent(10_000, 0, False, now=5.0)

    assert delivery.sample(10_000, departure, 5.0, 5.0 + RTT, RTT / 2) == pytest.approx(100_000)


def test_trains_in_a_row_show_the_rate_at_which_they_are_acknowledged() -> None:
    delivery = DeliveryRate()
    sent = [(5 + 0.01 * i, 1_000 * i) for i in range(100)]
    snapshots = [
        delivery.on_sent(1_000, min(flight, 10_000), False, now=at) for at, flight in sent[:10]
    ]
    rates = []
    for i in range(90):
        now = 5 + RTT + 0.02 * i  # the path delivers half of what is sent
        rates.append(delivery.sample(1_000, snapshots[i], sent[i][0], now, RTT / 2))
        snapshots.append(delivery.on_sent(1_000, 9_000, False, now=now))
        sent[i + 10] = (now, 0)

    assert rates[-1] == pytest.approx(1_000 / 0.02)


def test_acknowledgements_that_come_together_do_not_look_like_a_fast_path() -> None:
    """A lump of ACKs after a train sent slowly: the time it took to send counts."""
    delivery = DeliveryRate()
    snapshots = [delivery.on_sent(1_000, 1_000 * i, False, now=5 + 0.1 * i) for i in range(11)]

    delivery.sample(1_000, snapshots[0], 5.0, 6.0, RTT / 2)
    rate = delivery.sample(10_000, snapshots[10], 6.0, 6.001, RTT / 2)

    assert rate == pytest.approx(11_000 / 1.001)


def test_what_is_measured_over_too_short_a_time_says_nothing() -> None:
    delivery = DeliveryRate()
    departure = delivery.on_sent(1_000, 0, False, now=5.0)

    assert delivery.sample(1_000, departure, 5.0, 5.01, 0.011) == 0


def test_where_the_application_paused_the_first_round_trip_is_marked() -> None:
    delivery = DeliveryRate()
    assert not delivery.on_sent(1_000, 0, False, now=1.0)[4]
    last = delivery.on_sent(1_000, 1_000, True, now=1.0)
    assert last[4]
    delivery.sample(2_000, last, 1.0, 1.1, 0.05)

    first = delivery.on_sent(1_000, 0, False, now=9.0)
    second = delivery.on_sent(1_000, 1_000, False, now=9.05)
    delivery.sample(1_000, first, 9.0, 9.1, 0.05)
    third = delivery.on_sent(1_000, 1_000, False, now=9.1)

    assert [first[4], second[4], third[4]] == [True, True, False]


def test_after_a_restart_what_was_sent_before_gives_no_samples() -> None:
    delivery = DeliveryRate()
    before = delivery.on_sent(1_000, 0, True, now=1.0)
    assert delivery.is_current(before)

    delivery.restart()
    after = delivery.on_sent(1_000, 0, False, now=2.0)

    assert not delivery.is_current(before)
    assert delivery.sample(1_000, before, 1.0, 2.1, 0.05) == 0
    assert delivery.is_current(after)
    assert not after[4]
    assert delivery.sample(1_000, after, 2.0, 2.1, 0.05) > 0


# Lumps of acknowledgements.


def test_a_steady_stream_has_lumps_of_one_acknowledgement() -> None:
    aggregation = AckAggregation(10)
    assert aggregation.extra_bytes == 0

    for i in range(100):
        aggregation.on_ack(1_000, 100_000, i, now=5 + 0.01 * i)

    assert aggregation.extra_bytes == pytest.approx(1_000, abs=1)


def test_a_lump_is_what_comes_beyond_the_bandwidth_and_is_forgotten_after_some_rounds() -> None:
    aggregation = AckAggregation(10)
    aggregation.on_ack(1_000, 100_000, 0, now=5.0)

    for _ in range(5):
        aggregation.on_ack(2_000, 100_000, 0, now=5.1)
    assert aggregation.extra_bytes == pytest.approx(10_000)

    for i in range(1, 20):
        aggregation.on_ack(1_000, 100_000, i, now=6 + 0.01 * i)
    assert aggregation.extra_bytes == pytest.approx(1_000, abs=1)
