"""Cubic: RFC 9438, whose sections the names of the constants lead to."""

import pytest

from gradwire_protocol.congestion import Cubic
from gradwire_protocol.congestion.controller import WINDOW_PACKETS_INITIAL, WINDOW_PACKETS_MIN
from gradwire_protocol.congestion.cubic import ALPHA, BETA, PACING_GAIN, PACING_GAIN_SLOW_START, C
from support.exchanges import DATAGRAM, RTT, Exchanges

INITIAL = WINDOW_PACKETS_INITIAL * DATAGRAM


def start() -> Exchanges:
    return Exchanges(Cubic(DATAGRAM, lambda: 0.5))


def use_window(exchanges: Exchanges, rtt: float = RTT) -> None:
    exchanges.exchange(exchanges.controller.window_bytes, rtt=rtt)


def lose(exchanges: Exchanges, size: int = DATAGRAM) -> None:
    """Lose some of a full window; what is sent from then on is younger than the cut."""
    exchanges.exchange(exchanges.controller.window_bytes, lost=size)
    exchanges.now += 0.001


def test_the_window_doubles_with_every_round_trip_until_something_is_lost() -> None:
    exchanges = start()

    for i in (1, 2, 3):
        use_window(exchanges)
        assert exchanges.controller.window_bytes == INITIAL * 2**i


def test_a_window_that_is_not_used_does_not_grow() -> None:
    exchanges = start()

    for _ in range(20):
        exchanges.exchange(INITIAL // 2 - 1)

    assert exchanges.controller.window_bytes == INITIAL


def test_slow_start_is_paced_at_twice_the_window_and_the_rest_a_little_above_it() -> None:
    exchanges = start()
    controller = exchanges.controller

    use_window(exchanges)
    assert controller.pacing_rate == PACING_GAIN_SLOW_START * controller.window_bytes / RTT
    lose(exchanges)

    assert controller.pacing_rate == pytest.approx(PACING_GAIN * controller.window_bytes / RTT)


def test_losses_of_one_round_trip_cut_the_window_once() -> None:
    exchanges = start()
    controller = exchanges.controller
    exchanges.send(INITIAL)

    controller.on_lost(DATAGRAM, exchanges.now, INITIAL, exchanges.now + 0.1)
    controller.on_lost(DATAGRAM, exchanges.now + 0.1, INITIAL, exchanges.now + 0.15)
    assert controller.window_bytes == int(BETA * INITIAL)
    controller.on_lost(DATAGRAM, exchanges.now + 0.11, INITIAL, exchanges.now + 0.21)

    assert controller.window_bytes == int(BETA * int(BETA * INITIAL))


def test_a_mark_is_as_good_as_a_loss() -> None:
    exchanges = start()

    exchanges.exchange(INITIAL, marked=3)
    exchanges.controller.on_spurious_loss(DATAGRAM, exchanges.now)

    assert exchanges.controller.window_bytes == int(BETA * INITIAL)


def test_the_window_never_falls_below_a_few_datagrams() -> None:
    exchanges = start()

    for _ in range(50):
        lose(exchanges)

    assert exchanges.controller.window_bytes == WINDOW_PACKETS_MIN * DATAGRAM


def test_what_was_sent_before_the_cut_does_not_open_the_window() -> None:
    exchanges = start()
    departure = exchanges.send(INITIAL)
    exchanges.controller.on_lost(DATAGRAM, exchanges.now, INITIAL, exchanges.now + 0.1)

    exchanges.acknowledge(INITIAL, departure)

    assert exchanges.controller.window_bytes == int(BETA * INITIAL)


def test_after_a_loss_the_window_follows_the_cubic_function() -> None:
    """Over a long path, where it is far above the additive-increase flow."""
    exchanges = start()
    for _ in range(5):
        use_window(exchanges)
    peak = exchanges.controller.window_bytes
    lose(exchanges)
    begin = exchanges.now
    plateau_after = (peak * (1 - BETA) / DATAGRAM / C) ** (1 / 3)

    windows = {}
    while exchanges.now < begin + 2 * plateau_after:
        use_window(exchanges)
        windows[exchanges.now - begin] = exchanges.controller.window_bytes

    for after, window in windows.items():
        # The epoch begins with the first ACK after the cut: a round trip later.
        expected = peak + C * DATAGRAM * (after - RTT - plateau_after) ** 3
        assert window == pytest.approx(expected, rel=0.03)


def test_over_a_short_path_it_is_as_fast_as_an_additive_increase_flow() -> None:
    exchanges = start()
    lose(exchanges)
    before = exchanges.controller.window_bytes

    for _ in range(20):
        use_window(exchanges, rtt=0.001)

    grown = exchanges.controller.window_bytes - before
    assert grown == pytest.approx(20 * ALPHA * DATAGRAM, rel=0.05)


def test_beyond_the_window_before_the_loss_it_grows_like_reno() -> None:
    exchanges = start()
    lose(exchanges)
    while exchanges.controller.window_bytes < INITIAL + 2 * DATAGRAM:
        use_window(exchanges, rtt=0.001)
    before = exchanges.controller.window_bytes

    for _ in range(5):
        use_window(exchanges, rtt=0.001)

    assert exchanges.controller.window_bytes - before == pytest.approx(5 * DATAGRAM, rel=0.05)


def test_a_second_loss_below_the_last_peak_leaves_room_for_others() -> None:
    """Fast convergence: the plateau is lower than the window that was lost at."""
    windows = []
    for again in (False, True):
        exchanges = start()
        for _ in range(4):
            use_window(exchanges)
        lose(exchanges)
        if again:
            lose(exchanges)
        begin = exchanges.now
        window = exchanges.controller.window_bytes
        while exchanges.now < begin + 6.5:
            use_window(exchanges)
        windows.append(exchanges.controller.window_bytes / window)

    # It grows back to 1 / 0.7 of the cut window after one loss, and to 0.85 / 0.7 after two.
    assert windows[0] == pytest.approx(1 / BETA, rel=0.03)
    assert windows[1] == pytest.approx((1 + BETA) / 2 / BETA, rel=0.03)


def test_time_in_which_the_window_is_not_used_does_not_count() -> None:
    exchanges = start()
    for _ in range(4):
        use_window(exchanges)
    lose(exchanges)
    use_window(exchanges)
    before = exchanges.controller.window_bytes

    for _ in range(100):
        exchanges.exchange(DATAGRAM)
    assert exchanges.controller.window_bytes == before
    use_window(exchanges)

    assert exchanges.controller.window_bytes < 1.1 * before


def test_a_loss_that_was_none_is_undone_as_soon_as_all_has_arrived() -> None:
    exchanges = start()
    controller = exchanges.controller
    use_window(exchanges)
    exchanges.send(2 * INITIAL)
    controller.on_lost(3 * DATAGRAM, exchanges.now, INITIAL, exchanges.now + 0.1)

    controller.on_spurious_loss(2 * DATAGRAM, exchanges.now + 0.11)
    assert controller.window_bytes == int(BETA * 2 * INITIAL)
    controller.on_spurious_loss(DATAGRAM, exchanges.now + 0.12)
    assert controller.window_bytes == 2 * INITIAL

    use_window(exchanges)
    assert controller.window_bytes == 4 * INITIAL  # slow start goes on


def test_losses_are_undone_once() -> None:
    exchanges = start()
    controller = exchanges.controller
    lose(exchanges)
    controller.on_spurious_loss(DATAGRAM, exchanges.now)

    controller.on_spurious_loss(DATAGRAM, exchanges.now)

    assert controller.window_bytes == INITIAL


def test_after_persistent_congestion_it_starts_slowly_up_to_the_threshold() -> None:
    exchanges = start()
    controller = exchanges.controller
    for _ in range(2):
        use_window(exchanges)
    lose(exchanges)
    threshold = controller.window_bytes

    controller.on_persistent_congestion()
    assert controller.window_bytes == WINDOW_PACKETS_MIN * DATAGRAM
    while controller.window_bytes < threshold:
        before = controller.window_bytes
        use_window(exchanges)
        assert controller.window_bytes == 2 * before
    window = controller.window_bytes
    use_window(exchanges)

    assert controller.window_bytes < 1.1 * window


def test_on_another_path_it_starts_anew() -> None:
    exchanges = start()
    controller = exchanges.controller
    lose(exchanges)
    departure = exchanges.send(INITIAL)

    controller.on_path_changed()
    assert controller.window_bytes == INITIAL
    assert controller.pacing_rate == INITIAL / 0.001

    # What becomes of the packets of the former path means nothing here.
    exchanges.acknowledge(INITIAL // 2, departure)
    controller.on_lost(INITIAL // 2, exchanges.sent_at, 0, exchanges.now)
    assert controller.window_bytes == INITIAL
    exchanges.now += 0.01
    use_window(exchanges)
    assert controller.window_bytes == 2 * INITIAL


def test_datagrams_of_another_size_change_the_smallest_window_and_the_growth() -> None:
    exchanges = start()
    exchanges.controller.set_datagram_bytes(2 * DATAGRAM)

    assert exchanges.controller.window_bytes == INITIAL
    for _ in range(50):
        lose(exchanges)

    assert exchanges.controller.window_bytes == WINDOW_PACKETS_MIN * 2 * DATAGRAM
