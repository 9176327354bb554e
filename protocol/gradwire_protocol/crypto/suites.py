"""Suites: which algorithms make the bytes of a connection trustworthy.

The initiator names one in its INIT; there is no negotiation. A responder with keys accepts every
sealed suite, and one without keys accepts suite 0 only. The handshake hashes the number, so it
cannot be changed on the way. `Credentials` are the keys that prove an endpoint's identity and
check that of its peers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from gradwire_protocol.crypto.keys import Keyring, WorkerKey

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Keys of one endpoint. An endpoint without any speaks suite 0 and no other."""

    unix_time_ns: Callable[[], int]
    """The time of day, `time.time_ns`. Every INIT carries it; an INIT that is not newer than the
    last one of its key is a replay."""

    key: WorkerKey | None = None
    """Key for dialling out; without one the endpoint cannot dial."""

    keyring: Keyring | None = None
    """Keys of the peers that may connect."""

    suite: Suite = Suite.AES
    """Suite for dialling out. Incoming connections may use any sealed suite."""

    instance: str = ""
    """Host and address of a master. It tells masters with the same run key apart and stays the same
    over restarts. Empty where no session outlives the process, as over TCP."""
