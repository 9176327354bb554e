"""`SocketCounters` and `TcpCounters`: counts of a UDP socket, and of a driver's TCP connections."""

from dataclasses import dataclass


@dataclass(slots=True)
class SocketCounters:
    """Counts of a UDP socket; bytes are those of UDP payloads."""

    reads: int = 0
    """System calls that returned data; with GRO one of them returns many datagrams."""
    datagrams_received: int = 0
    bytes_received: int = 0
    marked: int = 0
    """Datagrams received with the mark CE: a router on the way had a queue."""
    truncated: int = 0
    """Reads dropped because the buffer was too small for them, which should never happen."""
    receive_drops: int = 0
    """Datagrams, or with GRO batches, that the kernel dropped: they were not read in time."""

    trains_sent: int = 0
    """System calls that sent data; with GSO one of them sends many datagrams."""
    datagrams_sent: int = 0
    bytes_sent: int = 0
    oversize: int = 0
    """Datagrams refused as too large for the link; the search for the largest size causes some."""
    send_errors: int = 0
    """Datagrams refused for any other reason."""
    gso_fallbacks: int = 0
    """Trains that the kernel refused to cut and that went out datagram by datagram."""


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
