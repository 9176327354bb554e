"""Limits for peers that have proved nothing yet: `Cookies` and token buckets.

Cookies prove, without stored state, that a sender receives at its address. A cookie is a keyed hash
of the address and of the key id in the INIT. The secret behind it is renewed every
`limits.COOKIE_SECONDS`; the previous secret remains valid.
"""

import hmac
from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import blake2s
from typing import Final

from gradwire_protocol.delivery.events import Address
from gradwire_protocol.limits import COOKIE_SECONDS
from gradwire_protocol.wire.packets import COOKIE_BYTES

_SECRET_BYTES: Final = 32


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


class Cookies:
    """Cookies of one endpoint."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._secret = self._previous = b""
        self._renewed_at = float("-inf")

    def make(self, address: Address, key_id: bytes | memoryview, now: float) -> bytes:
        """Return the cookie of an address."""
        self._renew(now)
        return _cookie(self._secret, address, key_id)

    def is_valid(
        self, cookie: bytes, address: Address, key_id: bytes | memoryview, now: float
    ) -> bool:
        """Return whether `make` gave this cookie to this address not long ago."""
        self._renew(now)
        return any(
            hmac.compare_digest(_cookie(secret, address, key_id), cookie)
            for secret in (self._secret, self._previous)
        )

    def _renew(self, now: float) -> None:
        age = now - self._renewed_at
        if age < COOKIE_SECONDS:
            return
        fresh = self._random_bytes(_SECRET_BYTES)
        still_good = self._secret and age < 2 * COOKIE_SECONDS
        self._previous = self._secret if still_good else fresh
        self._secret = fresh
        self._renewed_at = now


def _cookie(secret: bytes, address: Address, key_id: bytes | memoryview) -> bytes:
    named = repr(address).encode() + bytes(key_id)
    return blake2s(named, key=secret, person=b"gw-cooki", digest_size=COOKIE_BYTES).digest()
