"""The interface between loss recovery and a congestion controller, and `StaticWindow` for TCP."""

from math import inf
from typing import Final, NamedTuple

from gradwire_protocol.limits import MIB

WINDOW_PACKETS_INITIAL: Final = 32
"""Datagrams in flight before anything is known of the path. RFC 9002 allows 10. These leave paced,
and a small update then takes one round trip."""

WINDOW_PACKETS_MIN: Final = 4
"""Datagrams in flight that are always allowed: with fewer, a loss is found only by a timer."""

UNKNOWN_RTT_SECONDS: Final = 0.001
"""Paces the initial window before the first sample; short, so that a local network does not
wait."""

WINDOW_BYTES: Final = 4 * MIB
"""10 Gbit/s over 3 ms, or 1 Gbit/s over 30 ms."""


class AckSample(NamedTuple):
    """The contents of one ACK, prepared for a controller.

    A named tuple, because there is one per ACK: a frozen dataclass takes six times as long to make.
    """

    now: float
    acked_bytes: int
    """Newly acknowledged by this ACK."""
    in_flight: int
    """Bytes in flight after this ACK and without the losses that it revealed."""
    departure: object
    """Returned by `on_sent` for the train of the newest packet newly acknowledged."""
    sent_at: float
    """When that packet left."""
    number: int
    """Its packet number."""
    next_number: int
    """The next packet number to be used. When it or a later one is acknowledged, a round is
    over."""
    ack_delay: float
    """How long the receiver held the ACK."""
    rtt: float | None
    """Round-trip time measured by this ACK, positive; None if it gives no sample."""
    smoothed_rtt: float
    marked: int
    """Packets newly reported with the ECN mark CE."""


class CongestionController:
    """Sets a window and a rate from what happens to packets. This base ignores everything.

    Sizes are in bytes of UDP payload, times in seconds of the owner's clock. Losses revealed by an
    ACK are reported before the ACK.
    """

    __slots__ = ()

    window_bytes: int
    """Most bytes that may be in flight."""

    pacing_rate: float
    """Bytes per second at which packets should leave; infinite for no pacing."""

    @property
    def product_bytes(self) -> float:
        """Bytes that the path was seen to carry in a round trip, as far as this is known."""
        return self.window_bytes

    def on_sent(self, size: int, in_flight: int, *, app_limited: bool, now: float) -> object:
        """Record a train that is sent.

        Parameters
        ----------
        size : int
            Bytes of the whole train.
        in_flight : int
            Bytes in flight before it.
        app_limited : bool
            Whether nothing is left to send, so that the application limits the rate and not the
            network.

        Returns
        -------
        object
            Kept with the packets of the train and returned in an `AckSample`.
        """

    def on_ack(self, sample: AckSample) -> None:
        """Process an ACK with newly acknowledged packets."""

    def on_lost(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        """Record a loss.

        Parameters
        ----------
        size : int
            Bytes of all packets newly found lost.
        sent_at : float
            When the newest of them left.
        in_flight : int
            Bytes in flight without them.
        """

    def on_spurious_loss(self, size: int, now: float) -> None:
        """Take back the loss of `size` bytes that arrived after all."""

    def on_persistent_congestion(self) -> None:
        """Restart with the smallest window: every packet was lost for a long time."""

    def on_path_changed(self) -> None:
        """Restart: the peer has moved to another address."""

    def set_datagram_bytes(self, datagram_bytes: int) -> None:
        """Use another datagram size from now on."""


class StaticWindow(CongestionController):
    """A fixed window without pacing."""

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES
        self.pacing_rate = inf
