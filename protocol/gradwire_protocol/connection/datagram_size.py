"""Size of datagrams: a search by probes, and a way back (RFC 8899, in spirit).

Every path carries 1,200 bytes, or the handshake would have failed. Larger sizes are tried one by
one, with packets of padding only, so their loss harms nothing and says nothing about congestion.
Routers that silently drop large datagrams are detected by bursts of losses in which only large
packets were lost while small ones arrived.
"""

from typing import Final

from gradwire_protocol.limits import DATAGRAM_BYTES_MIN
from gradwire_protocol.wire.packets import WORD_BYTES

SIZES: Final = (1_200, 1_400, 1_452, 4_000, 8_900)
"""Sizes to try: the minimum, common tunnels, Ethernet with IPv6, two kinds of jumbo frames."""

TRIES: Final = 3
"""Lost probes of a size after which the search pauses."""

SEARCH_AGAIN_SECONDS: Final = 600.0
BLACK_HOLE_BURSTS: Final = 3
"""Bursts in which only large packets were lost, with no large packet arriving in between, after
which the path counts as a black hole for them."""

BLACK_HOLE_SECONDS: Final = 60.0
"""How long the smallest size is used after a black hole."""


class DatagramSizes:
    """The size of the datagrams of one connection.

    Parameters
    ----------
    limit : int
        The largest that both sides and the configuration allow.
    """

    __slots__ = ("_burst_ends", "_bursts", "_candidate", "_limit", "_next_search", "_start",
                 "_tries", "current", "probing")  # fmt: skip

    def __init__(self, start: int, limit: int) -> None:
        limit -= limit % WORD_BYTES  # packets are whole words; the peer's limit may not be
        self._start = min(start, limit)
        self._limit = limit
        self._set_size(self._start)
        self.probing = 0
        """Size of the probe under way; 0 if there is none."""
        self._tries = 0
        self._next_search = 0.0
        self._bursts = 0
        self._burst_ends = 0.0

    @property
    def next_timer(self) -> float | None:
        """When `probe_to_send` may return a probe; None when the search is over."""
        return self._next_search if self._candidate and not self.probing else None

    def probe_to_send(self, now: float) -> int:
        """Return the size of a probe to send now; 0 for none."""
        if self.probing or not self._candidate or now < self._next_search:
            return 0
        self.probing = self._candidate
        return self.probing

    def on_probe_acked(self, size: int) -> bool:
        """Record that a probe arrived; return whether datagrams can be larger now."""
        self.probing = 0
        self._tries = 0
        if size <= self.current:
            return False
        self._set_size(size)
        return True

    def on_probe_lost(self, now: float) -> None:
        """Record that a probe was lost."""
        self.probing = 0
        self._tries += 1
        if self._tries == TRIES:
            self._tries = 0
            self._next_search = now + SEARCH_AGAIN_SECONDS

    def on_acked(self, largest: int) -> None:
        """Record the size of the largest packet that has arrived."""
        if largest > DATAGRAM_BYTES_MIN:
            self._bursts = 0

    def on_lost(self, smallest: int, rtt: float, now: float) -> bool:
        """Record the size of the smallest lost packet; return whether this is a black hole.

        Losses detected within a round trip are one burst: a queue that overflows at the start of a
        connection loses packets for a whole round trip, and timers find them one by one.
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
        """Start the search again from the initial size."""
        self._set_size(self._start)
        self._bursts = self._tries = self.probing = 0
        self._next_search = self._burst_ends = 0.0

    def _set_size(self, size: int) -> None:
        self.current = size
        """Largest datagram to send."""
        larger = (size for size in (*SIZES, self._limit) if self.current < size <= self._limit)
        self._candidate = min(larger, default=0)
        """The next size to try; 0 if there is none."""
