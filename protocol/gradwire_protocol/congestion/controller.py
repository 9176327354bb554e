"""The interface between loss recovery and a congestion controller."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

WINDOW_PACKETS_INITIAL: Final = 32
"""Datagrams in flight before anything is known of a path, where RFC 9002 has 10: they leave paced,
and a small update then takes one round trip."""

WINDOW_PACKETS_MIN: Final = 4
"""Fewer are never allowed: with less in flight, a loss is found by a timer only."""

UNKNOWN_RTT_SECONDS: Final = 0.001
"""Paces the initial window before there is a sample: a local network must not wait for it."""


class AckSample(NamedTuple):
    """What one ACK says, put together for a controller.

    A named tuple because one is made for every ACK: a frozen dataclass takes six times as long.
    """

    now: float
    acked_bytes: int
    """Newly acknowledged by this ACK."""
    in_flight: int
    """What is in flight after it; losses that it made known are taken off too."""
    snapshot: object
    """What `on_sent` returned for the train of the newest packet newly acknowledged."""
    sent_at: float
    """When that packet left."""
    number: int
    """Its packet number."""
    next_number: int
    """The next packet number to be used: acknowledging it, or a later one, is a round later."""
    rtt: float | None
    """Round-trip time as this ACK shows it, positive; None where it shows none."""
    smoothed_rtt: float
    marked: int
    """Packets newly reported with the ECN mark CE."""


class CongestionController(Protocol):
    """Learns what happens to packets and answers with a window and a rate.

    Sizes are in bytes of UDP payload, times in seconds of the owner's clock. Losses that an ACK
    makes known are reported before the ACK.
    """

    @property
    def name(self) -> str:
        """What it is called in a configuration."""

    @property
    def window_bytes(self) -> int:
        """Most bytes that may be in flight."""

    @property
    def pacing_rate(self) -> float:
        """Bytes per second at which packets should leave; infinite for no pacing."""

    def on_sent(self, size: int, in_flight: int, *, app_limited: bool, now: float) -> object:
        """Note a train sent.

        Parameters
        ----------
        size : int
            Bytes of the whole train.
        in_flight : int
            What was in flight before it.
        app_limited : bool
            Whether nothing is left to send: the application, not the network, sets the pace.
        now : float

        Returns
        -------
        object
            To be kept for as long as a packet of the train is, and given back in an `AckSample`.
        """

    def on_ack(self, sample: AckSample) -> None:
        """Learn from an ACK that acknowledged something."""

    def on_lost(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        """Note a loss.

        Parameters
        ----------
        size : int
            Bytes of all packets newly found lost.
        sent_at : float
            When the newest of them left.
        in_flight : int
            What is in flight without them.
        now : float
        """

    def on_spurious_loss(self, size: int, now: float) -> None:
        """Take back a loss: so many bytes arrived after all."""

    def on_persistent_congestion(self) -> None:
        """Start anew with the smallest window: nothing got through for a long time."""

    def on_path_changed(self) -> None:
        """Start anew: the peer is somewhere else now."""

    def set_datagram_bytes(self, datagram_bytes: int) -> None:
        """Note that datagrams are of another size from now on."""


ControllerFactory: TypeAlias = Callable[[int, Callable[[], float]], CongestionController]
"""Makes a controller from the size of a datagram and a source of numbers in [0, 1)."""
