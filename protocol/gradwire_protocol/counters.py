"""Counters of one endpoint: packets received, dropped (by reason) and sent again."""

from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple


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


@dataclass(slots=True)
class Counters:
    """Counts of one endpoint over all its connections since it was made."""

    packets_accepted: int = 0
    handshakes_answered: int = 0
    retries_sent: int = 0
    resets_sent: int = 0
    resets_received: int = 0
    connections_opened: int = 0
    fragments_sent: int = 0
    fragments_retransmitted: int = 0
    packets_lost: int = 0
    packets_spuriously_lost: int = 0
    packets_marked: int = 0
    black_holes: int = 0
    probe_timeouts: int = 0
    addresses_changed: int = 0
    violations: int = 0
    idle_timeouts: int = 0
    epochs_begun: int = 0
    stalls: int = 0
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

    def flat(self) -> dict[str, int]:
        """Return every counter that is one number by its name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.type is int}
