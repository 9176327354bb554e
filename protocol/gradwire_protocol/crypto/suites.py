"""Suites: which algorithms make the bytes of a connection trustworthy.

The initiator names one in its INIT; there is no negotiation. A responder with keys accepts every
sealed suite, and one without keys accepts suite 0 only. The handshake hashes the number, so it
cannot be changed on the way.
"""

from enum import IntEnum
from typing import Final, TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

Cipher: TypeAlias = AESGCM | ChaCha20Poly1305
"""An authenticated cipher with its key (RFC 5116)."""


class Suite(IntEnum):
    """The number of a suite in INIT and ACCEPT."""

    CHECKSUM = 0
    """No secrecy and no proof of identity: packets are only checked for damage."""
    AES = 1
    """Noise_NNpsk0_25519_AESGCM_SHA256; packets are sealed with AES-256-GCM."""
    CHACHA = 2
    """Noise_NNpsk0_25519_ChaChaPoly_SHA256; for machines that compute AES in software."""


CIPHERS: Final[dict[Suite, type[Cipher]]] = {
    Suite.AES: AESGCM,
    Suite.CHACHA: ChaCha20Poly1305,
}
NOISE_NAMES: Final = {
    Suite.AES: b"Noise_NNpsk0_25519_AESGCM_SHA256",
    Suite.CHACHA: b"Noise_NNpsk0_25519_ChaChaPoly_SHA256",
}

CIPHER_KEY_BYTES: Final = 32
CIPHER_NONCE_BYTES: Final = 12


def cipher_of(suite: Suite, key: bytes) -> Cipher:
    """Return the cipher of a sealed suite with a key."""
    return CIPHERS[suite](key)
