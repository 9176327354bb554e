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
    """The tag does not match: damaged, truncated or forged."""
    DUPLICATE = "duplicate"
    """The packet number came before."""
    INVALID_HANDSHAKE = "invalid_handshake"
    """An INIT, ACCEPT or VERSIONS that cannot be one."""
    NOT_ACCEPTING = "not_accepting"
    """An INIT at an endpoint that only dials out, or is shutting down."""
    FULL = "full"
    """Beyond the number of connections: an INIT, which is not answered, or the first packet after
    one that was, which is answered with a CLOSE."""
    VERSION = "version"
    """An INIT of another version; answered with the versions this side knows."""


@dataclass(slots=True)
class Counters:
    """What happened at one endpoint, over all its connections, since it was made."""

    packets_accepted: int = 0
    handshakes_answered: int = 0
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
    stalls: int = 0
    drops: dict[Drop, int] = field(default_factory=lambda: dict.fromkeys(Drop, 0))

    def drop(self, reason: Drop) -> None:
        """Count a datagram dropped."""
        self.drops[reason] += 1

    def flat(self) -> dict[str, int]:
        """Return every counter but `drops` by its name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "drops"}
