"""StaticWindow: nothing that happens changes it."""

from math import inf

from gradwire_protocol.congestion import StaticWindow
from gradwire_protocol.congestion.controller import WINDOW_BYTES
from support.exchanges import Exchanges


def test_nothing_changes_it() -> None:
    controller = StaticWindow()
    exchanges = Exchanges(controller)

    exchanges.exchange(50_000)
    exchanges.exchange(50_000, lost=20_000, marked=10)
    controller.on_spurious_loss(1_000, exchanges.now)
    controller.on_persistent_congestion()
    controller.on_path_changed()
    controller.set_datagram_bytes(8_900)

    assert controller.window_bytes == WINDOW_BYTES
    assert controller.pacing_rate == inf
