"""The round trip without a queue, and whether a round had one."""

from math import inf
from typing import Final

VALID_SECONDS: Final = 5.0
"""How long a minimum is believed: paths change."""

VALID_ROUND_TRIPS: Final = 20
"""Nor is it measured more often than this: that takes one of them, at half the rate."""

QUEUED: Final = 1.05
"""A round trip so many times the minimum had to wait in a queue."""


class RoundTrip:
    """Learns round trips of one path; times in seconds.

    A sample is quiet when so little was in flight as it was taken that no queue of ours can be in
    it. Where there are such samples, because the application pauses now and then, the shortest of
    them takes the place of a minimum that has become old. Where there are none, somebody has to
    make room for one.
    """

    __slots__ = ("_at", "_quiet", "_round_max", "_round_min", "minimum")

    def __init__(self) -> None:
        self.minimum = inf
        """Infinite before the first sample."""
        self._quiet = inf
        self._at = 0.0
        self._round_min = inf
        self._round_max = 0.0

    @property
    def queued(self) -> bool:
        """Whether even the shortest round trip of this round shows a queue."""
        return inf > self._round_min > QUEUED * self.minimum

    @property
    def unqueued(self) -> bool:
        """Whether even the longest round trip of this round shows no queue."""
        return self._round_max <= QUEUED * self.minimum

    def on_sample(self, rtt: float, quiet: bool, now: float) -> None:
        """Learn a round trip."""
        if rtt <= self.minimum:
            self.minimum = rtt
            self._at = now
            self._quiet = inf
        elif quiet and rtt < self._quiet:
            self._quiet = rtt
        if rtt < self._round_min:
            self._round_min = rtt
        if rtt > self._round_max:
            self._round_max = rtt

    def end_round(self) -> None:
        """Begin another round."""
        self._round_min = inf
        self._round_max = 0.0

    def is_outdated(self, now: float) -> bool:
        """Return whether the minimum is too old, and there is nothing to put in its place."""
        if self.minimum == inf:
            return False
        if now <= self._at + max(VALID_SECONDS, VALID_ROUND_TRIPS * min(self.minimum, 1.0)):
            return False
        if self._quiet == inf:
            return True
        self.renew(now)
        return False

    def renew(self, now: float) -> None:
        """Replace the minimum by the shortest quiet sample since it was measured, if any."""
        if self._quiet < inf:
            self.minimum = self._quiet
            self._quiet = inf
        self._at = now
