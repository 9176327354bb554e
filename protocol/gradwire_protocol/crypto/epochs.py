"""`SealingKeys` and `OpeningKeys`: the key for each packet number.

Every 2^24 packets of a direction form an epoch with a key of its own. The epoch is the packet
number divided by 2^24, and each key follows from the previous one by a one-way function. The two
sides need not agree on a key change: the packet number, which is never reused, determines key and
nonce.

2^24 packets of at most 8,900 bytes are 2^33.2 blocks of AES. A million packets more would not
matter: see the limits of RFC 9001, appendix B.
"""

import hmac
from typing import Final

from gradwire_protocol.crypto.suites import Cipher, Suite, cipher_of
from gradwire_protocol.limits import EPOCH_PACKETS_BITS, PACKET_NUMBERS_BITS

_LABEL: Final = b"gradwire ku\x01"


def epoch_of(number: int) -> int:
    """Return the epoch of a packet number."""
    return number >> EPOCH_PACKETS_BITS


def next_key(key: bytes) -> bytes:
    """Return the key of the next epoch."""
    return hmac.digest(key, _LABEL, "sha256")


class SealingKeys:
    """Keys of the direction we send in, beginning with that of epoch 0; they only move forward."""

    __slots__ = ("_cipher", "_key", "_suite", "epoch")

    def __init__(self, suite: Suite, key: bytes) -> None:
        self.epoch = 0
        self._suite = suite
        self._key = key
        self._cipher = cipher_of(suite, key)

    def cipher(self, number: int) -> Cipher:
        """Return the cipher that seals a packet, and erase the keys of earlier epochs."""
        assert number >> PACKET_NUMBERS_BITS == 0
        epoch = epoch_of(number)
        assert epoch >= self.epoch, f"packet {number} would use a key of the past"
        while self.epoch < epoch:
            self._key = next_key(self._key)
            self.epoch += 1
            self._cipher = cipher_of(self._suite, self._key)
        return self._cipher


class OpeningKeys:
    """Keys of the direction we receive in, beginning with that of epoch 0.

    They are those of the newest epoch, the one before it and the one after it.
    """

    __slots__ = ("_ciphers", "_key", "_suite", "epoch", "forgeries")

    def __init__(self, suite: Suite, key: bytes) -> None:
        self.epoch = 0
        """The newest epoch with an authentic packet."""
        self.forgeries = 0
        """Packets that failed to open since the epoch began."""
        self._suite = suite
        self._key = next_key(key)
        self._ciphers = {0: cipher_of(suite, key), 1: cipher_of(suite, self._key)}

    def cipher(self, number: int) -> Cipher | None:
        """Return the cipher that opens a packet; None if no key of its epoch is held."""
        return self._ciphers.get(number >> EPOCH_PACKETS_BITS)

    def on_authentic(self, number: int) -> bool:
        """Record an authentic packet; return whether it begins an epoch."""
        epoch = epoch_of(number)
        if epoch <= self.epoch:
            return False
        self._ciphers.pop(self.epoch - 1, None)
        self.epoch = epoch
        self._key = next_key(self._key)
        self._ciphers[epoch + 1] = cipher_of(self._suite, self._key)
        self.forgeries = 0
        return True

    def forget_previous_key(self) -> None:
        """Erase the key of the previous epoch; its last packets have had time to arrive."""
        self._ciphers.pop(self.epoch - 1, None)
