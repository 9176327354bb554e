"""`SealingKeys` and `OpeningKeys`: the key that belongs to a packet number.

Every 2^24 packets of a direction have a key of their own, its epoch being the packet number
divided by that, and each key follows from the one before by a one-way function. So there is no
update to agree on: the number of a packet, which is never used twice, names key and nonce.

2^24 packets of at most 8,900 bytes are 2^33.2 blocks of AES, and a million packets more would not
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
    """Keys of the direction we send in: only forward.

    Parameters
    ----------
    suite : Suite
    key : bytes
        Of epoch 0.
    """

    __slots__ = ("_cipher", "_key", "_suite", "epoch")

    def __init__(self, suite: Suite, key: bytes) -> None:
        self.epoch = 0
        self._suite = suite
        self._key = key
        self._cipher = cipher_of(suite, key)

    def cipher(self, number: int) -> Cipher:
        """Return what seals a packet; the key before it is gone from then on."""
        assert number >> PACKET_NUMBERS_BITS == 0
        epoch = epoch_of(number)
        assert epoch >= self.epoch, f"packet {number} would use a key of the past"
        while self.epoch < epoch:
            self._key = next_key(self._key)
            self.epoch += 1
            self._cipher = cipher_of(self._suite, self._key)
        return self._cipher


class OpeningKeys:
    """Keys of the direction we receive in: of the newest epoch, the one before, and the one after.

    Parameters
    ----------
    suite : Suite
    key : bytes
        Of epoch 0.
    """

    __slots__ = ("_ciphers", "_key", "_suite", "epoch", "forgeries")

    def __init__(self, suite: Suite, key: bytes) -> None:
        self.epoch = 0
        """The newest one of which an authentic packet came."""
        self.forgeries = 0
        """Packets that were opened in vain since the epoch began."""
        self._suite = suite
        self._key = next_key(key)
        self._ciphers = {0: cipher_of(suite, key), 1: cipher_of(suite, self._key)}

    def cipher(self, number: int) -> Cipher | None:
        """Return what opens a packet; None where no key of its epoch is at hand."""
        return self._ciphers.get(number >> EPOCH_PACKETS_BITS)

    def on_authentic(self, number: int) -> bool:
        """Note a packet that was authentic; return whether it begins an epoch."""
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
        """Erase the key of the epoch before: what is still under way from then is late enough."""
        self._ciphers.pop(self.epoch - 1, None)
