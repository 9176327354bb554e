"""How large datagrams may be: a search with probes, and a way back (RFC 8899, in spirit).

A path carries 1,200 bytes, or there was no handshake. What more it carries is tried out, size by
size, with packets that hold nothing but padding, so their loss harms nobody and says nothing about
congestion. Routers that swallow large datagrams without a word are found by the bursts of losses
in which only large packets were lost while small ones got through.
"""

from typing import Final

from gradwire_protocol.limits import DATAGRAM_BYTES_MIN
from gradwire_protocol.wire.words import WORD_BYTES

SIZES: Final = (1_200, 1_400, 1_452, 4_000, 8_900)
"""What is tried: common tunnels, Ethernet with IPv6, and jumbo frames of two kinds."""

TRIES: Final = 3
"""Probes of a size that may be lost before it is given up for now."""

SEARCH_AGAIN_SECONDS: Final = 600.0
BLACK_HOLE_BURSTS: Final = 3
"""Bursts of losses that only large packets suffered, with none of them arriving in between."""

BLACK_HOLE_SECONDS: Final = 60.0
"""How long the least size is kept after that."""


class DatagramSizes:
    """The size of the datagrams of one connection.

    Parameters
    ----------
    start : int
        To begin with.
    limit : int
        The largest that both sides and the configuration allow.
    """

    __slots__ = ("_burst_ends", "_bursts", "_candidate", "_limit", "_next_search", "_start",
                 "_tries", "current", "probing")  # fmt: skip

    def __init__(self, start: int, limit: int) -> None:
        limit -= limit % WORD_BYTES  # packets are whole words, whatever the peer said
        self._start = min(start, limit)
        self._limit = limit
        self._set_size(self._start)
        self.probing = 0
        """Size of the probe that is under way; 0 while there is none."""
        self._tries = 0
        self._next_search = 0.0
        self._bursts = 0
        self._burst_ends = 0.0

    @property
    def next_timer(self) -> float | None:
        """When `probe_to_send` may have something to say; None where the search is over."""
        return self._next_search if self._candidate and not self.probing else None

    def probe_to_send(self, now: float) -> int:
        """Return the size of a probe to send now; 0 for none."""
        if self.probing or not self._candidate or now < self._next_search:
            return 0
        self.probing = self._candidate
        return self.probing

    def on_probe_acked(self, size: int) -> bool:
        """Note that a probe arrived; return whether datagrams can be larger now."""
        self.probing = 0
        self._tries = 0
        if size <= self.current:
            return False
        self._set_size(size)
        return True

    def on_probe_lost(self, now: float) -> None:
        """Note that a probe was lost."""
        self.probing = 0
        self._tries += 1
        if self._tries == TRIES:
            self._tries = 0
            self._next_search = now + SEARCH_AGAIN_SECONDS

    def on_acked(self, largest: int) -> None:
        """Note the size of the largest packet that has arrived."""
        if largest > DATAGRAM_BYTES_MIN:
            self._bursts = 0

    def on_lost(self, smallest: int, rtt: float, now: float) -> bool:
        """Note the size of the smallest packet lost; return whether this is a black hole.

        Losses that are found within a round trip are one burst: a queue that overflows while a
        connection starts loses packets for a whole round trip, and timers find them one by one.
        """
        if smallest <= DATAGRAM_BYTES_MIN or self.current == DATAGRAM_BYTES_MIN:
            return False
        if now < self._burst_ends:
            return False
        self._burst_ends = now + rtt
        self._bursts += 1
        if self._bursts < BLACK_HOLE_BURSTS:
            return False
        self._bursts = 0
        self._set_size(DATAGRAM_BYTES_MIN)
        self._next_search = now + BLACK_HOLE_SECONDS
        return True

    def on_path_changed(self) -> None:
        """Begin anew."""
        self._set_size(self._start)
        self._bursts = self._tries = self.probing = 0
        self._next_search = self._burst_ends = 0.0

    def _set_size(self, size: int) -> None:
        self.current = size
        """Largest datagram to send."""
        larger = (size for size in (*SIZES, self._limit) if self.current < size <= self._limit)
        self._candidate = min(larger, default=0)
        """The next size to try; 0 where there is none."""
