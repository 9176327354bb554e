"""How connections behave: every setting with its default, its unit and its reason."""

from collections.abc import Callable
from dataclasses import dataclass

from gradwire_protocol.congestion import CongestionController, NewReno
from gradwire_protocol.errors import UsageError
from gradwire_protocol.limits import (
    DATAGRAM_BYTES,
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    IDLE_TIMEOUT_SECONDS_MAX,
    REASSEMBLY_BYTES_MAX,
    WINDOW_BYTES,
    WINDOW_BYTES_MIN,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Settings of a connection. Durations are in seconds, sizes in bytes, as the names say."""

    datagram_bytes: int = DATAGRAM_BYTES
    """Largest datagram to send and to accept: what the path carries less IP and UDP headers."""

    window_bytes: int = WINDOW_BYTES
    """Message bytes that the peer may have under way."""

    idle_timeout_seconds: float = 30.0
    """Close when nothing was heard for this long. The smaller one of both sides holds."""

    keepalive_seconds: float = 10.0
    """Ask for a sign of life when nothing happened for this long; a third of the idle timeout
    where that is less, so that a single lost datagram never ends a connection."""

    connect_timeout_seconds: float = 10.0
    """Give up when an INIT was not answered for this long."""

    congestion: Callable[[int], CongestionController] = NewReno
    """Makes the congestion controller of a connection from the size of its datagrams."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, naming value and limit."""
        if not DATAGRAM_BYTES_MIN <= self.datagram_bytes <= DATAGRAM_BYTES_MAX:
            raise UsageError(
                f"datagram_bytes={self.datagram_bytes}; it is "
                f"{DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX}"
            )
        if not WINDOW_BYTES_MIN <= self.window_bytes <= REASSEMBLY_BYTES_MAX:
            raise UsageError(
                f"window_bytes={self.window_bytes}; it is "
                f"{WINDOW_BYTES_MIN} to {REASSEMBLY_BYTES_MAX}"
            )
        if not 0.001 <= self.idle_timeout_seconds <= IDLE_TIMEOUT_SECONDS_MAX:
            raise UsageError(
                f"idle_timeout_seconds={self.idle_timeout_seconds}; it is 0.001 to "
                f"{IDLE_TIMEOUT_SECONDS_MAX:g}"
            )
        for name in ("keepalive_seconds", "connect_timeout_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name}={getattr(self, name)}; it has to be above 0 and finite")
