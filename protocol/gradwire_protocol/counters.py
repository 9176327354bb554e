"""Counters of one endpoint: what came in, what was dropped and why, what was sent again."""

from dataclasses import dataclass, field, fields
from enum import StrEnum


class Drop(StrEnum):
    """Why a datagram was dropped."""

    SHORT = "short"
    """Shorter than the packet it claims to be."""
    UNKNOWN_TYPE = "unknown_type"
    """No packet of this version begins like that."""
    UNKNOWN_SESSION = "unknown_session"
    """No connection has this session id, or not any more."""
    NOT_AUTHENTIC = "not_authentic"
    """The tag does not match: damaged, truncated or forged, or made with another key."""
    DUPLICATE = "duplicate"
    """The packet number came before."""
    INVALID_HANDSHAKE = "invalid_handshake"
    """An INIT, ACCEPT, RETRY, VERSIONS or RESET that cannot be one."""
    NOT_ACCEPTING = "not_accepting"
    """An INIT at an endpoint that only dials out, or is shutting down."""
    FULL = "full"
    """Beyond the number of connections: an INIT, which is not answered, or the first packet after
    one that was, which is answered with a CLOSE."""
    OTHER_SUITE = "other_suite"
    """An INIT with a sealed suite where there are no keys, or without one where there are."""
    UNKNOWN_KEY = "unknown_key"
    """An INIT with a key that no run key of ours has made, by what it says."""
    COOKIE = "cookie"
    """A cookie that was not made for its address, or too long ago: as if its INIT had none."""
    TOO_MANY = "too_many"
    """An INIT beyond what its source may send in a while."""
    DENIED = "denied"
    """An INIT of a name that is denied."""
    REPLAYED = "replayed"
    """An INIT that is not newer than the last one with the same key."""
    VERSION = "version"
    """An INIT of another version; answered with the versions this side knows."""


@dataclass(slots=True)
class Counters:
    """What happened at one endpoint, over all its connections, since it was made."""

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
    parity_sent: int = 0
    black_holes: int = 0
    probe_timeouts: int = 0
    addresses_changed: int = 0
    violations: int = 0
    idle_timeouts: int = 0
    epochs_begun: int = 0
    stalls: int = 0
    drops: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))

    def count_drop(self, reason: Drop) -> None:
        """Count a datagram dropped."""
        self.drops[reason] += 1

    def flat(self) -> dict[str, int]:
        """Return every counter but `drops` by its name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "drops"}
