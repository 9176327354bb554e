"""Controllers by their names; and StaticWindow, which nothing that happens changes."""

from math import inf

import pytest

from gradwire_protocol.congestion import CONTROLLERS, StaticWindow
from gradwire_protocol.congestion.controller import WINDOW_PACKETS_INITIAL
from support.exchanges import DATAGRAM, Exchanges

INITIAL = WINDOW_PACKETS_INITIAL * DATAGRAM


@pytest.mark.parametrize(
    ("name", "window_bytes", "pacing_rate"),
    [
        ("bbr", INITIAL, INITIAL / 0.001),
        ("cubic", INITIAL, INITIAL / 0.001),
        ("static", 4 * 2**20, inf),
    ],
)
def test_a_controller_is_found_by_its_name_and_begins_with_its_window(
    name: str, window_bytes: int, pacing_rate: float
) -> None:
    controller = CONTROLLERS[name](DATAGRAM, lambda: 0.5)

    assert controller.name == name
    assert controller.window_bytes == window_bytes
    assert controller.pacing_rate == pacing_rate


def test_nothing_changes_it() -> None:
    controller = StaticWindow(DATAGRAM, lambda: 0.5, window_bytes=50_000, pacing_rate=1e6)
    exchanges = Exchanges(controller)

    exchanges.exchange(50_000)
    exchanges.exchange(50_000, lost=20_000, marked=10)
    controller.on_spurious_loss(1_000, exchanges.now)
    controller.on_persistent_congestion()
    controller.on_path_changed()
    controller.set_datagram_bytes(8_900)

    assert controller.window_bytes == 50_000
    assert controller.pacing_rate == 1e6
