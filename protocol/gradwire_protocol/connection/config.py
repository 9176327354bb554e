"""How connections behave: every setting with its default, its unit and its reason."""

from dataclasses import dataclass, replace

from gradwire_protocol.congestion import CONTROLLERS, StaticWindow
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
    """Size of full datagrams to begin with, without IP and UDP headers."""

    datagram_bytes_max: int = DATAGRAM_BYTES_MAX
    """Largest datagram to accept, and to find out whether the path carries it."""

    window_bytes: int = WINDOW_BYTES
    """Message bytes that the peer may have under way."""

    idle_timeout_seconds: float = 30.0
    """Close when nothing was heard for this long. The smaller one of both sides holds."""

    keepalive_seconds: float = 10.0
    """Ask for a sign of life when nothing happened for this long; a third of the idle timeout
    where that is less, so that a single lost datagram never ends a connection."""

    connect_timeout_seconds: float = 10.0
    """Give up when an INIT was not answered for this long."""

    congestion: str = "bbr"
    """Congestion control, by its name: see `congestion`."""

    lossless: bool = False
    """What carries the packets loses none as long as it lasts: TCP. An acknowledgement that does
    not come is then on its way, and asking for it would only lengthen the queue it is in."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, naming value and limit."""
        for name in ("datagram_bytes", "datagram_bytes_max"):
            size = getattr(self, name)
            if not DATAGRAM_BYTES_MIN <= size <= DATAGRAM_BYTES_MAX or size % 4:
                raise UsageError(
                    f"{name}={size}; it is a multiple of 4 from {DATAGRAM_BYTES_MIN} to "
                    f"{DATAGRAM_BYTES_MAX}"
                )
        if self.congestion not in CONTROLLERS:
            known = ", ".join(sorted(CONTROLLERS))
            raise UsageError(f"congestion={self.congestion!r}; it is one of {known}")
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

    @property
    def over_tcp(self) -> "ConnectionConfig":
        """The same, for packets that travel over TCP: see `gradwire_udp.tcp.driver`.

        TCP cuts what it is given as the path needs it, and has a congestion control of its own.
        """
        return replace(
            self,
            datagram_bytes=DATAGRAM_BYTES_MAX,
            datagram_bytes_max=DATAGRAM_BYTES_MAX,
            congestion=StaticWindow.name,
            lossless=True,
        )
