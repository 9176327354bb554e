"""`Liveness`: whether the peer is still there, and when to ask."""

from typing import Final

IDLE_PROBE_TIMEOUTS: Final = 3
"""Probe timeouts that an idle timeout covers (RFC 9000, section 10.1), so that a long path is not
taken for a dead one."""

IDLE_STRETCH_MAX: Final = 2
"""A peer that withholds its acknowledgements stretches the idle timeout by no more than this."""


class Liveness:
    """When one peer was heard last.

    Parameters
    ----------
    idle_timeout : float
        Seconds of silence after which it is taken for dead.
    keepalive : float
        Seconds of silence after which it is asked; a third of `idle_timeout` where that is less, so
        that a single lost datagram never ends a connection.
    now : float
    """

    __slots__ = ("_idle_timeout", "_keepalive", "_last_asked", "last_heard")

    def __init__(self, idle_timeout: float, keepalive: float, now: float) -> None:
        self._idle_timeout = idle_timeout
        self._keepalive = min(keepalive, idle_timeout / 3)
        self._last_asked = float("-inf")
        self.last_heard = now

    def stretched_timeout(self, probe_timeout: float) -> float:
        """Return after how many seconds of silence the peer is taken for dead."""
        stretched = min(IDLE_PROBE_TIMEOUTS * probe_timeout, IDLE_STRETCH_MAX * self._idle_timeout)
        return max(self._idle_timeout, stretched)

    def idle_deadline(self, probe_timeout: float) -> float:
        """Return when the peer is taken for dead if it stays silent."""
        return self.last_heard + self.stretched_timeout(probe_timeout)

    def keepalive_deadline(self, last_sent: float) -> float:
        """Return when the peer has to be asked, if nothing else asks it."""
        return max(self.last_heard, self._last_asked, last_sent) + self._keepalive

    def on_asked(self, now: float) -> None:
        """Note that the peer is being asked."""
        self._last_asked = now
