"""`ConnectionConfig`: every setting of a connection with its default, unit and reason."""

from dataclasses import dataclass, replace

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
    """Initial size of full datagrams, without IP and UDP headers."""

    datagram_bytes_max: int = DATAGRAM_BYTES_MAX
    """Largest datagram to accept, and largest size to probe the path for."""

    window_bytes: int = WINDOW_BYTES
    """Message bytes that the peer may have under way."""

    idle_timeout_seconds: float = 30.0
    """Close after this much silence. The smaller value of both sides counts."""

    keepalive_seconds: float = 10.0
    """Ask for a sign of life after this much inactivity. At most a third of the idle timeout
    counts, so a single lost datagram never ends a connection."""

    connect_timeout_seconds: float = 10.0
    """Give up if an INIT is not answered for this long."""

    lossless: bool = False
    """Whether the packets travel over TCP, which loses none while it lasts and has a congestion
    control of its own. A missing acknowledgement is then still on its way, and asking for it would
    only lengthen the queue."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, naming value and limit."""
        for name in ("datagram_bytes", "datagram_bytes_max"):
            size = getattr(self, name)
            if not DATAGRAM_BYTES_MIN <= size <= DATAGRAM_BYTES_MAX or size % 4:
                raise UsageError(
                    f"{name}={size}; use a multiple of 4 from {DATAGRAM_BYTES_MIN} to "
                    f"{DATAGRAM_BYTES_MAX}"
                )
        for name, least, most in (
            ("window_bytes", WINDOW_BYTES_MIN, REASSEMBLY_BYTES_MAX),
            ("idle_timeout_seconds", 0.001, int(IDLE_TIMEOUT_SECONDS_MAX)),
        ):
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"{name}={getattr(self, name)}; use {least} to {most}")
        for name in ("keepalive_seconds", "connect_timeout_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name}={getattr(self, name)}; use a finite number above 0")

    @property
    def over_tcp(self) -> "ConnectionConfig":
        """The same settings for packets over TCP: see `gradwire_udp.tcp.driver`.

        TCP cuts its stream into packets of any size.
        """
        return replace(
            self,
            datagram_bytes=DATAGRAM_BYTES_MAX,
            datagram_bytes_max=DATAGRAM_BYTES_MAX,
            lossless=True,
        )
