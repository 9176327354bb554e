"""`SocketCounters` and `TcpCounters`: counts of a UDP socket, and of a driver's TCP connections."""

from dataclasses import dataclass

from gradwire_protocol.counters import counted


@dataclass(slots=True)
class SocketCounters:
    """Counts of a UDP socket; bytes are those of UDP payloads."""

    datagrams_received: int = counted("UDP datagrams received.")
    bytes_received: int = counted("UDP payload received.", "received_bytes")
    datagrams_sent: int = counted("UDP datagrams handed to the kernel.")
    bytes_sent: int = counted("UDP payload handed to the kernel.", "sent_bytes")
    send_errors: int = counted("Datagrams that the kernel refused to send; recovered from as lost.")
    reads: int = counted(
        "System calls that brought datagrams; many each, where the kernel joins them.",
        "socket_reads",
    )
    trains_sent: int = counted(
        "System calls that sent datagrams; many each, where the kernel cuts them.",
        "socket_writes",
    )
    receive_drops: int = counted(
        "Datagrams, or batches of them, dropped by the kernel because nobody read them "
        "in time: the master is too slow, or net.core.rmem_max too small.",
        "receive_buffer_drops",
    )
    oversize: int = counted(
        "Datagrams larger than the link takes; the search for their size causes some.",
        "datagrams_oversize",
    )
    gso_fallbacks: int = counted(
        "Trains that the kernel refused to cut, and that went out one by one.",
        "segmentation_fallbacks",
    )
    marked: int = 0
    """Datagrams received with the mark CE: a router on the way had a queue."""
    truncated: int = 0
    """Reads dropped because the buffer was too small for them, which should never happen."""


@dataclass(slots=True)
class TcpCounters:
    """Counts of a driver's TCP connections; bytes are those of packets and their lengths."""

    bytes_received: int = counted("TCP payload received.", "tcp_received_bytes")
    bytes_sent: int = counted("TCP payload handed to the kernel.", "tcp_sent_bytes")
    packets_received: int = counted("Packets received over TCP.", "tcp_packets_received")
    packets_sent: int = counted("Packets sent over TCP.", "tcp_packets_sent")
    accepted: int = counted("TCP connections that were opened.", "tcp_connections_accepted")
    turned_away: int = counted(
        "TCP connections closed because there were too many, or nothing came over them.",
        "tcp_connections_turned_away",
    )
    broken: int = counted(
        "TCP connections that the other side or the network ended.", "tcp_connections_broken"
    )
    violations: int = counted(
        "TCP connections closed because something other than packets arrived.", "tcp_violations"
    )
    reads: int = 0
    """System calls that returned data."""
    open: int = 0
    """Connections that are open now."""
    queued_bytes: int = 0
    """Bytes that the kernel has not taken yet."""
