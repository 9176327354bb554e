"""`TcpCounters`: counts of a driver's TCP connections."""

from dataclasses import dataclass


@dataclass(slots=True)
class TcpCounters:
    """Counts of a driver's TCP connections; bytes are those of packets and their lengths."""

    accepted: int = 0
    """Connections that peers have opened."""
    turned_away: int = 0
    """Connections closed because there were too many, or because no connection of ours used
    them."""
    violations: int = 0
    """Connections closed because of bytes that are no packets with their lengths."""
    broken: int = 0
    """Connections that ended, but were not closed on purpose by this side."""
    open: int = 0
    """Connections that are open now."""

    reads: int = 0
    """System calls that returned data."""
    packets_received: int = 0
    bytes_received: int = 0

    packets_sent: int = 0
    bytes_sent: int = 0
    queued_bytes: int = 0
    """Bytes that the kernel has not taken yet."""
