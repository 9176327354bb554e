"""`LossCap`: a cap on the bytes in flight, for paths that lose packets when more are in flight.

Packets are lost because a queue overflows or because a link is bad. Slowing down for a bad link
gains nothing, and a path with 3 % of such losses would hardly be used. So the cap learns, while
nothing is probed, the floor: what the path always loses. It cuts only for losses above this floor,
and only where the queue was full when most of them were found: the round trip tells, or ECN marks.
Losses that come in bursts exceed the floor in many rounds, but they do not wait for a full queue.

A fixed ceiling on the tolerated loss would be simpler, but at 10 % random loss it closes the window
for ever.
"""

from math import inf, sqrt
from typing import Final

LOSS_TOLERATED: Final = 0.02
LOSS_TOLERATED_PROBING: Final = 0.06
"""A probe overflows a short queue by itself, in two rounds of eight: this is 1.5 % of all."""

FLOOR_FACTOR: Final = 1.5
"""A round is too lossy above the sum of the tolerated loss, this multiple of the floor, and one
standard deviation of the losses of a path with that floor. Without the deviation, chance alone
exceeds the threshold so often that paths of a few dozen packets stay half empty. With two
deviations, a dozen flows on such a path would count each other's losses as its floor."""

FLOOR_MAX: Final = 0.15
"""Largest floor: no path normally loses more."""

KNOWN_MAX: Final = 2 * FLOOR_MAX
"""A first round that loses more than this says nothing about the path: others have filled a queue
behind those few of its packets that arrived."""

FLOOR_GAIN: Final = 1 / 8
BACKOFF: Final = 0.7
BACKOFF_PROBING: Final = 0.85
"""0.85 uses shallow queues better, and 0.7 shares them visibly better. Losses of a probe say little
about others."""

PIPE_SHARE_MIN: Final = 0.5
"""Smallest cap, as a share of the pipe."""

GROWTH_PROBING: Final = 0.1
GROWTH_CRUISING: Final = 0.01
"""Growth of the cap after a round without too much loss, as a share of the pipe."""

GROWTH_UNQUEUED: Final = 0.25
"""The same after a round in which no packet met a queue, up to the pipe: the cap leaves a part of
the path unused, and nobody else uses it."""

PIPES_MAX: Final = 3.0
"""Multiple of the pipe above which the cap has no effect and is lifted."""

HEADROOM: Final = 0.9
"""Share of the cap used when not probing, which leaves room for other flows to grow."""

PACKETS_MIN: Final = 20
"""Packets needed for a conclusion; shorter rounds are combined."""


class LossCap:
    """Learns the losses of rounds and caps the bytes in flight. Sizes in bytes."""

    __slots__ = ("_known_lost", "_known_sent", "acked", "floor", "limit", "lost", "overflowed")

    def __init__(self) -> None:
        self.lost = 0
        self.overflowed = 0
        """Bytes lost since the last conclusion while the queue was full, counted by the owner."""
        self.acked = 0
        """Bytes acknowledged or lost since the last conclusion, counted by the owner."""
        self.floor = 0.0
        """Share of packets that the path always loses."""
        self.limit = inf
        """Most bytes in flight while probing."""
        self._known_lost = 0
        self._known_sent = 0

    @property
    def loss(self) -> float:
        """Share of bytes lost since the last conclusion."""
        return self.lost / (self.acked + self.lost) if self.lost else 0.0

    @property
    def overflows(self) -> bool:
        """Whether the queue was full when most of the losses were found."""
        return 2 * self.overflowed > self.lost

    def is_lossy(self, gain: float, datagram_bytes: int) -> bool:
        """Return whether more was lost since the last conclusion than the path always loses."""
        if not self.lost:
            return False
        scatter = sqrt(self.floor * datagram_bytes / (self.acked + self.lost))
        tolerated = LOSS_TOLERATED if gain == 1 else LOSS_TOLERATED_PROBING
        return self.loss > tolerated + FLOOR_FACTOR * self.floor + scatter

    def learn_floor(self) -> None:
        """Count all losses towards the floor; the owner has seen no queue."""
        if self.loss > KNOWN_MAX:
            return
        self._known_lost += self.lost
        self._known_sent += self.acked + self.lost
        self.floor = min(self._known_lost / self._known_sent, FLOOR_MAX)

    def reset_counts(self) -> None:
        """Reset the counts."""
        self.lost = self.overflowed = self.acked = 0

    def end_round(
        self,
        *,
        gain: float,
        marked: bool,
        unqueued: bool,
        in_flight: int,
        pipe: float,
        datagram_bytes: int,
    ) -> None:
        """Adjust the cap, for losses only if enough packets were acknowledged or lost.

        Parameters
        ----------
        gain : float
            Pacing gain at the end of the round.
        marked : bool
            Whether a router marked packets of the round, which have met a queue.
        unqueued : bool
            Whether no packet of the round met a queue, as far as round trips show.
        in_flight : int
            Bytes in flight now.
        pipe : float
            Bytes in flight that keep the path busy.
        """
        if unqueued and self.limit < pipe:
            self.limit = min(self.limit + GROWTH_UNQUEUED * pipe, pipe)
        if self.acked + self.lost < PACKETS_MIN * datagram_bytes:
            return
        overflows = marked or self.overflows
        if overflows and self.is_lossy(gain, datagram_bytes):
            reached = min(self.limit, max(in_flight + self.lost, pipe))
            backoff = BACKOFF if gain == 1 else BACKOFF_PROBING
            self.limit = max(backoff * reached, PIPE_SHARE_MIN * pipe)
        else:
            growth = GROWTH_PROBING if gain > 1 else GROWTH_CRUISING
            self.limit += max(datagram_bytes, growth * pipe)
            if self.limit > PIPES_MAX * pipe:
                self.limit = inf
        if gain == 1 and not overflows:
            self.floor += FLOOR_GAIN * (min(self.loss, FLOOR_MAX) - self.floor)
        self.reset_counts()

    def window(self, gain: float) -> float:
        """Return how many bytes may be in flight at a pacing gain."""
        return self.limit if gain > 1 else HEADROOM * self.limit
