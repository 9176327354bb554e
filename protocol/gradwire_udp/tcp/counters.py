"""`TcpCounters`: what went through TCP connections."""

from dataclasses import dataclass


@dataclass(slots=True)
class TcpCounters:
    """What went through TCP connections; bytes are of packets and their lengths."""

    accepted: int = 0
    """Connections that others have opened."""
    turned_away: int = 0
    """Connections closed because there were too many, or because nothing of ours came over them."""
    violations: int = 0
    """Connections closed because something else came than packets with their lengths."""
    broken: int = 0
    """Connections that ended without our doing."""
    open: int = 0
    """Connections there are now."""

    reads: int = 0
    """System calls that brought something."""
    packets_received: int = 0
    bytes_received: int = 0

    packets_sent: int = 0
    bytes_sent: int = 0
    queued_bytes: int = 0
    """What waits now until the kernel takes it."""
