"""Counters of one endpoint: packets received, dropped (by reason) and sent again."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Drop(StrEnum):
    """Why a datagram was dropped."""

    SHORT = "short"
    """Shorter than the packet it claims to be."""
    UNKNOWN_TYPE = "unknown_type"
    """The first byte is no packet type of this version."""
    UNKNOWN_SESSION = "unknown_session"
    """No connection has this session id, or no longer has it."""
    NOT_AUTHENTIC = "not_authentic"
    """The tag does not match: the packet is damaged, truncated or forged, or made with another
    key."""
    DUPLICATE = "duplicate"
    """A packet with the same number came before."""
    INVALID_HANDSHAKE = "invalid_handshake"
    """A malformed INIT, ACCEPT, RETRY, VERSIONS or RESET."""
    NOT_ACCEPTING = "not_accepting"
    """An INIT at an endpoint that only dials out or is shutting down."""
    FULL = "full"
    """All connections are in use. An INIT gets no answer; the first packet after an answered INIT
    gets a CLOSE."""
    OTHER_SUITE = "other_suite"
    """An INIT with a sealed suite at an endpoint without keys, or without one at an endpoint with
    keys."""
    UNKNOWN_KEY = "unknown_key"
    """An INIT whose key id names none of our run keys."""
    COOKIE = "cookie"
    """A cookie made for another address or too long ago. The INIT is treated as if it had none."""
    TOO_MANY = "too_many"
    """An INIT beyond the rate allowed for its source."""
    DENIED = "denied"
    """An INIT with a denied name."""
    REPLAYED = "replayed"
    """An INIT that is not newer than the last one with the same key."""
    VERSION = "version"
    """An INIT of another version; the answer lists the versions this side knows."""


class RefusedInit(NamedTuple):
    """Where an INIT came from that was refused, for a log."""

    address: Hashable
    key_id: bytes
    """As the INIT has it: nobody has proved yet to have that key."""
    name: str = ""
    """The name in the key, where that was proved."""


def counted(text: str, metric: str | None = None) -> Any:
    """Declare a counter: what it says to operators, and its metric, if not named as the field."""
    return field(default=0, metadata={"text": text, "metric": metric})


@dataclass(slots=True)
class Counters:
    """Counts of one endpoint over all its connections since it was made."""

    packets_accepted: int = counted("Packets of established connections, authentic and new.")
    handshakes_answered: int = counted("Handshakes answered, repeated ones included.")
    retries_sent: int = counted("INITs that were asked to come back with a cookie.")
    resets_sent: int = counted("Packets of unknown sessions that were answered with a RESET.")
    resets_received: int = counted("Connections that the other side did not know any more.")
    connections_opened: int = counted("Connections established.")
    fragments_sent: int = counted("Fragments of messages sent, retransmitted ones included.")
    fragments_retransmitted: int = counted("Fragments of messages sent again.")
    packets_lost: int = counted("Packets taken for lost.")
    packets_spuriously_lost: int = counted("Packets taken for lost and acknowledged after all.")
    packets_marked: int = counted("Packets received with the ECN mark 'congestion experienced'.")
    black_holes: int = counted("Times that a path stopped carrying large datagrams.")
    probe_timeouts: int = counted("Times that nothing was acknowledged for a probe timeout.")
    addresses_changed: int = counted("Workers that moved to another address while connected.")
    violations: int = counted("Connections closed because the peer broke the protocol.")
    idle_timeouts: int = counted("Connections closed because nothing was heard any more.")
    epochs_begun: int = counted("Times that a worker went on to its next key.")
    stalls: int = counted("Connections closed because a message made no progress.")
    drops: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))
    refused: dict[Drop, RefusedInit] = field(default_factory=dict, compare=False)
    """By reason: an INIT that was refused, the first one since the owner has taken the entry out.
    Under a flood the others cost no more than to be counted."""

    def count_drop(self, reason: Drop) -> None:
        """Count a dropped datagram."""
        self.drops[reason] += 1

    def count_refused(
        self, reason: Drop, address: Hashable, key_id: bytes | memoryview, name: str = ""
    ) -> None:
        """Count an INIT that is refused, and keep where it came from."""
        self.drops[reason] += 1
        if reason not in self.refused:
            self.refused[reason] = RefusedInit(address, bytes(key_id), name)
