"""`Liveness`: when to ask a silent peer for a sign of life, and when to give it up."""

from typing import Final

IDLE_PROBE_TIMEOUTS: Final = 3
"""Probe timeouts that the idle timeout has to cover (RFC 9000, section 10.1), so that a long path
is not mistaken for a dead one."""

IDLE_STRETCH_MAX: Final = 2
"""Most idle timeouts to which a long probe timeout can stretch the limit. A peer can lengthen the
probe timeout by withholding acknowledgements."""


class Liveness:
    """The time of a peer's last packet.

    Parameters
    ----------
    idle_timeout : float
        Seconds of silence after which the peer counts as dead.
    keepalive : float
        Seconds of silence after which the peer is asked. At most a third of `idle_timeout` counts,
        so a single lost datagram never ends a connection.
    """

    __slots__ = ("_idle_timeout", "_keepalive", "_last_asked", "last_heard")

    def __init__(self, idle_timeout: float, keepalive: float, now: float) -> None:
        self._idle_timeout = idle_timeout
        self._keepalive = min(keepalive, idle_timeout / 3)
        self._last_asked = float("-inf")
        self.last_heard = now

    def stretched_timeout(self, probe_timeout: float) -> float:
        """Return the seconds of silence after which the peer counts as dead."""
        stretched = IDLE_PROBE_TIMEOUTS * probe_timeout
        if stretched <= self._idle_timeout:
            return self._idle_timeout
        return min(stretched, IDLE_STRETCH_MAX * self._idle_timeout)

    def idle_deadline(self, probe_timeout: float) -> float:
        """Return when the peer counts as dead if it stays silent."""
        return self.last_heard + self.stretched_timeout(probe_timeout)

    def keepalive_deadline(self, last_sent: float) -> float:
        """Return when the peer has to be asked, if nothing else asks it."""
        return max(self.last_heard, self._last_asked, last_sent) + self._keepalive

    def on_asked(self, now: float) -> None:
        """Record that the peer is being asked."""
        self._last_asked = now
