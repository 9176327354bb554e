"""`RoundTrip`: the round trip without a queue, and which round trips show a queue."""

from math import inf
from typing import Final

from gradwire_protocol.congestion.delivery_rate import WindowedMax

VALID_SECONDS: Final = 5.0
"""How long a minimum is valid, because paths change."""

VALID_ROUND_TRIPS: Final = 20
"""Round trips between two measurements of the minimum, at least: each takes a round trip at half
the rate."""

QUEUED: Final = 1.05
"""A round trip longer than the minimum by this factor had to wait in a queue."""

FILLING: Final = 0.08
"""A queue begins to fill when a packet waits for this share of the minimum, or `NOISE_SECONDS`."""

NOISE_SECONDS: Final = 0.0003
"""What computing and other packets add to a short round trip."""

LONGEST_ROUNDS: Final = 24
"""Rounds whose longest round trip shows how long the queue gets: three cycles of probes, each of
which fills it a little. A path that changes is known again after these."""

FULL_SHARE: Final = 0.5
"""A queue counts as full from this share of its longest delay on."""


class RoundTrip:
    """Round trips of one path, in seconds.

    A sample is quiet when too little was in flight for a queue of ours. If the application pauses
    now and then, there are quiet samples, and the shortest of them replaces a minimum that is out
    of date. Otherwise the sender has to leave room for one.
    """

    __slots__ = ("_at", "_latest", "_longest", "_quiet", "_round_max", "_round_min", "minimum")

    def __init__(self) -> None:
        self.minimum = inf
        """Infinite before the first sample."""
        self._latest = 0.0
        self._longest = WindowedMax(LONGEST_ROUNDS)
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
        return 0 < self._round_max <= QUEUED * self.minimum

    @property
    def shows_filling_queue(self) -> bool:
        """Return whether the last packet met a queue: earlier than a whole round shows one."""
        return self._latest > self.minimum + max(FILLING * self.minimum, NOISE_SECONDS)

    def shows_full_queue(self, rtt: float) -> bool:
        """Return whether a packet with this round trip met a queue about as long as it gets."""
        least = self.minimum
        return rtt > QUEUED * least and rtt >= least + FULL_SHARE * (self._longest.value - least)

    def on_sample(
        self, rtt: float, ack_delay: float, quiet: bool, at_round: int, now: float
    ) -> None:
        """Record a sample; `ack_delay` is how long the receiver held the ACK."""
        self._latest = rtt - ack_delay
        self._longest.update(at_round, rtt)
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
        """Begin the next round."""
        self._round_min = inf
        self._round_max = 0.0

    def is_outdated(self, now: float) -> bool:
        """Return whether the minimum is out of date and no quiet sample can replace it."""
        if self.minimum == inf:
            return False
        if now <= self._at + max(VALID_SECONDS, VALID_ROUND_TRIPS * min(self.minimum, 1.0)):
            return False
        if self._quiet == inf:
            return True
        self.renew(now)
        return False

    def renew(self, now: float) -> None:
        """Replace the minimum by the shortest quiet sample taken since, if there is one."""
        if self._quiet < inf:
            self.minimum = self._quiet
            self._quiet = inf
        self._at = now
