"""Congestion controllers by themselves: what each makes of acknowledgements and losses.

How they do on whole networks is in `tests/simulation`.
"""

import pytest

from gradwire_protocol.congestion import CONTROLLERS, AckSample, Cubic, StaticWindow
from gradwire_protocol.congestion.controller import (
    WINDOW_PACKETS_INITIAL,
    WINDOW_PACKETS_MIN,
    CongestionController,
)

DATAGRAM = 1_400
RTT = 0.05
ADAPTIVE = pytest.mark.parametrize("name", ["bbr", "cubic"])
ALL = pytest.mark.parametrize("name", sorted(CONTROLLERS))


class Path:
    """A path that delivers whole windows, a round trip after they were sent."""

    def __init__(self, controller: CongestionController) -> None:
        self.controller = controller
        self.now = 100.0
        self.number = 0

    def round(self, *, lost: int = 0, marked: int = 0, app_limited: bool = False) -> None:
        """Send a window; acknowledge all of it but `lost` bytes."""
        controller = self.controller
        size = controller.window_bytes
        snapshot = controller.on_sent(size, 0, app_limited=app_limited, now=self.now)
        sent_at, self.now = self.now, self.now + RTT
        self.number += size // DATAGRAM
        if lost:
            controller.on_lost(lost, sent_at, size - lost, self.now)
        controller.on_ack(
            AckSample(
                now=self.now,
                acked_bytes=size - lost,
                in_flight=0,
                snapshot=snapshot,
                sent_at=sent_at,
                number=self.number - 1,
                next_number=self.number,
                rtt=RTT,
                smoothed_rtt=RTT,
                marked=marked,
            )
        )


def path_with(name: str) -> Path:
    return Path(CONTROLLERS[name](DATAGRAM, lambda: 0.5))


@ALL
def test_a_controller_is_called_what_its_configuration_calls_it(name: str) -> None:
    assert path_with(name).controller.name == name


@ADAPTIVE
def test_the_first_window_leaves_at_once_on_a_local_network(name: str) -> None:
    controller = path_with(name).controller
    assert controller.window_bytes == WINDOW_PACKETS_INITIAL * DATAGRAM
    assert controller.pacing_rate >= controller.window_bytes / 0.001


@ADAPTIVE
def test_a_path_that_takes_everything_is_given_twice_as_much_each_round_at_first(
    name: str,
) -> None:
    path = path_with(name)
    windows = []
    for _ in range(6):
        path.round()
        windows.append(path.controller.window_bytes)
    assert windows == sorted(windows)
    assert windows[-1] >= 2**4 * WINDOW_PACKETS_INITIAL * DATAGRAM


@ALL
def test_no_loss_takes_the_last_packets_away(name: str) -> None:
    path = path_with(name)
    for _ in range(40):
        path.round(lost=path.controller.window_bytes // 2)
        assert path.controller.window_bytes >= WINDOW_PACKETS_MIN * DATAGRAM
        assert path.controller.pacing_rate > 0


@ADAPTIVE
def test_after_persistent_congestion_little_is_in_flight(name: str) -> None:
    path = path_with(name)
    for _ in range(5):
        path.round()
    path.controller.on_persistent_congestion()
    assert path.controller.window_bytes == WINDOW_PACKETS_MIN * DATAGRAM


@ADAPTIVE
def test_a_new_path_is_begun_as_the_first_one(name: str) -> None:
    path = path_with(name)
    for _ in range(5):
        path.round()
    path.controller.on_path_changed()
    assert path.controller.window_bytes == WINDOW_PACKETS_INITIAL * DATAGRAM


@ADAPTIVE
def test_larger_datagrams_make_the_least_window_larger(name: str) -> None:
    path = path_with(name)
    path.round()
    path.controller.set_datagram_bytes(2 * DATAGRAM)
    path.controller.on_persistent_congestion()
    assert path.controller.window_bytes == 2 * WINDOW_PACKETS_MIN * DATAGRAM


def test_cubic_is_cut_to_seven_tenths_once_a_round_and_grows_back() -> None:
    path = path_with("cubic")
    for _ in range(4):
        path.round()
    before = path.controller.window_bytes
    path.controller.on_lost(DATAGRAM, path.now - RTT / 2, before, path.now)
    path.controller.on_lost(DATAGRAM, path.now - RTT / 4, before, path.now)
    assert path.controller.window_bytes == pytest.approx(0.7 * before, rel=1e-3)
    for _ in range(200):
        path.round()
    assert path.controller.window_bytes >= before


def test_cubic_takes_a_cut_back_when_nothing_was_lost_after_all() -> None:
    path = path_with("cubic")
    for _ in range(4):
        path.round()
    before = path.controller.window_bytes
    path.controller.on_lost(DATAGRAM, path.now, before, path.now)
    path.controller.on_spurious_loss(DATAGRAM, path.now)
    assert path.controller.window_bytes == before


def test_cubic_takes_a_mark_for_congestion() -> None:
    path = path_with("cubic")
    for _ in range(4):
        path.round()
    before = path.controller.window_bytes
    path.round(marked=1)
    assert path.controller.window_bytes == pytest.approx(0.7 * before, rel=1e-3)


def test_cubic_does_not_grow_a_window_that_is_not_used() -> None:
    controller: CongestionController = Cubic(DATAGRAM, lambda: 0.5)
    before = controller.window_bytes
    for number in range(50):
        snapshot = controller.on_sent(DATAGRAM, 0, app_limited=True, now=float(number))
        controller.on_ack(
            AckSample(number + RTT, DATAGRAM, 0, snapshot, float(number), number, number + 1,
                      RTT, RTT, 0)
        )  # fmt: skip
    assert controller.window_bytes == before


def test_bbr_keeps_its_rate_through_random_losses() -> None:
    path = path_with("bbr")
    for _ in range(6):
        path.round()
    rate = path.controller.pacing_rate
    for _ in range(30):
        path.round(lost=path.controller.window_bytes // 100)
    assert path.controller.pacing_rate >= rate / 4


def test_a_static_window_stays_as_it_is() -> None:
    controller = StaticWindow(DATAGRAM, lambda: 0.5, window_bytes=10**6, pacing_rate=1e8)
    path = Path(controller)
    path.round(lost=500_000, marked=3)
    controller.on_spurious_loss(500_000, path.now)
    controller.on_persistent_congestion()
    controller.on_path_changed()
    controller.set_datagram_bytes(8_900)
    assert (controller.window_bytes, controller.pacing_rate) == (10**6, 1e8)
