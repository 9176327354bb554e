"""`SocketCounters`: what went through a socket."""

from dataclasses import dataclass


@dataclass(slots=True)
class SocketCounters:
    """What went through the socket; bytes are of UDP payload."""

    reads: int = 0
    """System calls that brought something; with GRO one of them brings many datagrams."""
    datagrams_received: int = 0
    bytes_received: int = 0
    marked: int = 0
    """Datagrams received with the mark CE: a router on the way had a queue."""
    truncated: int = 0
    """Reads dropped because the buffer was too small for them, which it never should be."""
    receive_drops: int = 0
    """What the kernel dropped because nobody read it in time: datagrams, or with GRO batches."""

    trains_sent: int = 0
    """System calls that sent something; with GSO one of them sends many datagrams."""
    datagrams_sent: int = 0
    bytes_sent: int = 0
    oversize: int = 0
    """Datagrams refused as larger than the link takes; the search for their size causes some."""
    send_errors: int = 0
    """Datagrams refused for any other reason."""
    gso_fallbacks: int = 0
    """Trains that the kernel refused to cut and that went out datagram by datagram."""
