"""Token buckets: how often something may be done for those who have proved nothing yet."""

from collections import OrderedDict
from collections.abc import Hashable


class TokenBucket:
    """So many a second, and so many at once after a pause.

    Parameters
    ----------
    rate : float
        Per second.
    burst : float
    """

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = float("-inf")

    def try_spend(self, now: float, times: int = 1) -> bool:
        """Return whether it may be done once more, or so many times, and count it."""
        elapsed = now - self._at
        self._at = now
        self._tokens = min(self._tokens + elapsed * self._rate, self._burst)
        if self._tokens < times:
            return False
        self._tokens -= times
        return True


class SourceBuckets:
    """A `TokenBucket` for each source, of which at most so many are remembered.

    Parameters
    ----------
    rate, burst : float
    sources_max : int
        The one unused for longest is forgotten.
    """

    def __init__(self, rate: float, burst: float, sources_max: int) -> None:
        self._rate = rate
        self._burst = burst
        self._sources_max = sources_max
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._buckets)

    def try_spend(self, source: Hashable, now: float) -> bool:
        """Return whether it may be done once more for a source, and count it."""
        bucket = self._buckets.get(source)
        if bucket is None:
            if len(self._buckets) >= self._sources_max:
                self._buckets.popitem(last=False)
            bucket = self._buckets[source] = TokenBucket(self._rate, self._burst)
        else:
            self._buckets.move_to_end(source)
        return bucket.try_spend(now)
