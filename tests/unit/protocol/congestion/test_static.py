"""StaticWindow: nothing that happens changes it."""

from math import inf

from gradwire_protocol.congestion import CONTROLLERS, StaticWindow
from support.exchanges import DATAGRAM, Exchanges


def test_it_is_found_by_its_name_and_not_paced() -> None:
    controller = CONTROLLERS["static"](DATAGRAM, lambda: 0.5)

    assert controller.name == "static"
    assert controller.window_bytes == 4 * 2**20
    assert controller.pacing_rate == inf


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
