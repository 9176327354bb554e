"""Token buckets: rate limits for peers that have proved nothing yet."""

from collections import OrderedDict
from collections.abc import Hashable


class TokenBucket:
    """Allows `rate` uses a second and `burst` at once after a pause."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = float("-inf")

    def try_spend(self, now: float, tokens: int = 1) -> bool:
        """Spend tokens; return whether there were enough."""
        elapsed = now - self._at
        self._at = now
        self._tokens = min(self._tokens + elapsed * self._rate, self._burst)
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True


class SourceBuckets:
    """A `TokenBucket` for each of `sources_max` sources; the least recently used is forgotten."""

    def __init__(self, rate: float, burst: float, sources_max: int) -> None:
        self._rate = rate
        self._burst = burst
        self._sources_max = sources_max
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of sources remembered."""
        return len(self._buckets)

    def try_spend(self, source: Hashable, now: float) -> bool:
        """Spend a token of a source; return whether there was one."""
        bucket = self._buckets.get(source)
        if bucket is None:
            if len(self._buckets) >= self._sources_max:
                self._buckets.popitem(last=False)
            bucket = self._buckets[source] = TokenBucket(self._rate, self._burst)
        else:
            self._buckets.move_to_end(source)
        return bucket.try_spend(now)
