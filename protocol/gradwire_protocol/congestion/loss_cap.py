"""A cap on what is in flight, for paths on which flights as large as before lose packets.

Packets are lost because a queue overflows, or because a link is bad. A rate that is cut for the
latter is cut for nothing, and a path with 3 % of such losses would hardly be used. So the cap
learns what the path loses anyway, while nothing is probed, and cuts only for what goes beyond
this floor, and only where there is other evidence of a queue: a longer round trip, a probe for
more, or ECN marks. A fixed ceiling on the loss that is tolerated would be simpler; at 10 % random
loss it closes the window for ever.
"""

from math import inf, sqrt
from typing import Final

LOSS_TOLERATED: Final = 0.02
FLOOR_FACTOR: Final = 1.5
"""A round is too lossy above the sum of the former, so many times the floor, and one standard
deviation of what a path with that floor loses: without the last, chance alone exceeds the
threshold so often that paths of a few dozen packets stay half empty. Two deviations would let a
dozen flows on such a path take each other's losses for its floor."""

FLOOR_MAX: Final = 0.15
"""Losses beyond this are nobody's normal state."""

FLOOR_GAIN: Final = 1 / 8
BACKOFF: Final = 0.7
"""0.85 uses shallow queues better by a few percent; 0.7 shares them visibly better."""

PIPE_SHARE_MIN: Final = 0.5
"""It never cuts deeper than to this part of the pipe."""

GROWTH_PROBING: Final = 0.1
GROWTH_CRUISING: Final = 0.01
"""Part of the pipe by which the cap is raised after a round without too much loss."""

PIPES_MAX: Final = 3.0
"""A cap above so many pipes does not cap anything, and is lifted."""

HEADROOM: Final = 0.9
"""Part of the cap that is used but for probing: room for others to grow into."""

PACKETS_MIN: Final = 20
"""Rounds are taken together until so many packets have had an end: fewer say nothing."""


class LossCap:
    """Learns the losses of rounds and caps what may be in flight. Sizes in bytes."""

    __slots__ = ("_known_lost", "_known_sent", "acked", "floor", "limit", "lost")

    def __init__(self) -> None:
        self.lost = 0
        self.acked = 0
        """What has had an end since the last conclusion, counted by the owner."""
        self.floor = 0.0
        """Part of all packets that the path loses anyway."""
        self.limit = inf
        """Most bytes in flight while probing."""
        self._known_lost = 0
        self._known_sent = 0

    @property
    def loss(self) -> float:
        """Return which part was lost since the last conclusion."""
        return self.lost / (self.acked + self.lost) if self.lost else 0.0

    def is_lossy(self, datagram_bytes: int) -> bool:
        """Return whether more was lost since the last conclusion than the path always loses."""
        if not self.lost:
            return False
        scatter = sqrt(self.floor * datagram_bytes / (self.acked + self.lost))
        return self.loss > LOSS_TOLERATED + FLOOR_FACTOR * self.floor + scatter

    def learn_floor(self) -> None:
        """Take all losses for the path's: the owner knows that there was no queue."""
        self._known_lost += self.lost
        self._known_sent += self.acked + self.lost
        self.floor = min(self._known_lost / self._known_sent, FLOOR_MAX)

    def reset_counts(self) -> None:
        """Begin to count anew."""
        self.lost = self.acked = 0

    def end_round(
        self, *, gain: float, queued: bool, in_flight: int, pipe: float, datagram_bytes: int
    ) -> None:
        """Draw the conclusions, if enough packets have had an end.

        Parameters
        ----------
        gain : float
            Pacing gain at the end of the round.
        queued : bool
            Whether there was a queue in it.
        in_flight : int
            Bytes in flight now.
        pipe : float
            What has to be in flight to keep the path busy, in bytes.
        datagram_bytes : int
        """
        if self.acked + self.lost < PACKETS_MIN * datagram_bytes:
            return
        if (queued or gain > 1) and self.is_lossy(datagram_bytes):
            reached = min(self.limit, max(in_flight + self.lost, pipe))
            self.limit = max(BACKOFF * reached, PIPE_SHARE_MIN * pipe)
        else:
            growth = GROWTH_PROBING if gain > 1 else GROWTH_CRUISING
            self.limit += max(datagram_bytes, growth * pipe)
            if self.limit > PIPES_MAX * pipe:
                self.limit = inf
        if gain == 1:
            self.floor += FLOOR_GAIN * (min(self.loss, FLOOR_MAX) - self.floor)
        self.reset_counts()

    def window(self, gain: float) -> float:
        """Return how many bytes may be in flight at a pacing gain."""
        return self.limit if gain > 1 else HEADROOM * self.limit
