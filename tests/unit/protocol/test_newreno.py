"""NewReno: doubling, then a datagram per round trip; half after a loss, once per round trip."""

import pytest

from gradwire_protocol.congestion import NewReno
from gradwire_protocol.congestion.newreno import (
    PACING_GAIN,
    WINDOW_PACKETS_INITIAL,
    WINDOW_PACKETS_MIN,
)

SIZE = 1000
INITIAL = WINDOW_PACKETS_INITIAL * SIZE


def acknowledge_a_window(controller: NewReno, sent_at: float) -> None:
    """Acknowledge as many full packets as the window holds, all of them in flight."""
    window = controller.window_bytes
    for _ in range(window // SIZE):
        controller.on_acked(SIZE, sent_at, window, sent_at + 0.1)


def test_the_window_doubles_with_every_round_trip() -> None:
    controller = NewReno(SIZE)
    assert controller.window_bytes == INITIAL

    for i in (1, 2, 3):
        acknowledge_a_window(controller, sent_at=i)
        assert controller.window_bytes == INITIAL * 2**i


def test_a_window_that_is_not_used_does_not_grow() -> None:
    controller = NewReno(SIZE)

    for i in range(100):
        controller.on_acked(SIZE, sent_at=i, in_flight=INITIAL // 2 - 1, now=i + 0.1)

    assert controller.window_bytes == INITIAL


def test_a_loss_halves_the_window() -> None:
    controller = NewReno(SIZE)

    controller.on_lost(1.0, now=1.1)

    assert controller.window_bytes == INITIAL // 2


def test_losses_of_one_round_trip_halve_the_window_once() -> None:
    controller = NewReno(SIZE)
    controller.on_lost(1.0, now=1.1)

    controller.on_lost(1.05, now=1.15)
    controller.on_lost(1.1, now=1.2)
    assert controller.window_bytes == INITIAL // 2
    controller.on_lost(1.11, now=1.21)

    assert controller.window_bytes == INITIAL // 4


def test_packets_sent_before_the_loss_was_seen_do_not_open_the_window() -> None:
    controller = NewReno(SIZE)
    controller.on_lost(1.0, now=1.1)

    acknowledge_a_window(controller, sent_at=1.1)

    assert controller.window_bytes == INITIAL // 2


def test_after_a_loss_the_window_grows_by_a_datagram_per_round_trip() -> None:
    controller = NewReno(SIZE)
    controller.on_lost(1.0, now=1.1)

    for i in (1, 2, 3):
        acknowledge_a_window(controller, sent_at=1.1 + i)

    assert controller.window_bytes == pytest.approx(INITIAL // 2 + 3 * SIZE, rel=0.01)


def test_the_window_never_falls_below_a_few_datagrams() -> None:
    controller = NewReno(SIZE)

    for i in range(100):
        controller.on_lost(i, now=i + 0.5)

    assert controller.window_bytes == WINDOW_PACKETS_MIN * SIZE


def test_packets_leave_a_little_faster_than_a_window_per_round_trip() -> None:
    controller = NewReno(SIZE)

    assert controller.pacing_rate(0.1) == PACING_GAIN * INITIAL / 0.1


def test_on_another_path_it_starts_anew() -> None:
    controller = NewReno(SIZE)
    controller.on_lost(1.0, now=1.1)

    controller.on_path_changed()

    assert controller.window_bytes == INITIAL
    acknowledge_a_window(controller, sent_at=1.05)
    assert controller.window_bytes == 2 * INITIAL


def test_sending_changes_nothing() -> None:
    controller = NewReno(SIZE)

    controller.on_sent(SIZE, 0, now=1.0)

    assert controller.window_bytes == INITIAL
