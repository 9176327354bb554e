"""The handshake of the sealed suites: Noise NNpsk0 with X25519 and SHA-256.

From "The Noise Protocol Framework", revision 34, https://noiseprotocol.org/noise.html; section
numbers below refer to it. Written for this one pattern::

    -> psk, e       in INIT, with a payload
    <- e, ee        in ACCEPT, with a payload

The pre-shared key comes first, so the payload of the INIT is authentic before the responder
computes a Diffie-Hellman exchange or stores anything. The ephemeral keys keep everything but that
payload secret, even from an attacker who learns the pre-shared key later. The prologue is the
beginning of the INIT (type, version, suite, session id and key id), so changing any of them is
detected.

An all-zero exchange cannot happen by accident; `cryptography` raises `ValueError` for it.
"""

from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gradwire_protocol.crypto.suites import NOISE_NAMES, Suite, cipher_of
from gradwire_protocol.errors import InvalidDatagramError

HASH_BYTES: Final = 32

_FIRST_NONCE: Final = bytes(12)  # every key of this pattern is used once


class NotAuthenticError(InvalidDatagramError):
    """A handshake message that was made with another pre-shared key, or was changed."""


class NoiseHandshake:
    """One side of a handshake: the symmetric state of section 5.2, and both ephemeral keys.

    The initiator calls `write_init` and `read_accept`, the responder `read_init` and
    `write_accept`; then both have the same `keys`.

    Parameters
    ----------
    suite : Suite
        A sealed one.
    secret : bytes
        The pre-shared key, 32 bytes.
    prologue : bytes
        Further data on which both sides have to agree.
    """

    __slots__ = ("_chaining_key", "_ephemeral", "_hash", "_key", "_remote", "_suite")

    def __init__(self, suite: Suite, secret: bytes, prologue: bytes) -> None:
        self._suite = suite
        name = NOISE_NAMES[suite]
        self._hash = name.ljust(HASH_BYTES, b"\0") if len(name) <= HASH_BYTES else _hash(name)
        self._chaining_key = self._hash
        self._key = b""
        self._ephemeral: X25519PrivateKey | None = None
        self._remote = b""
        self._mix_hash(prologue)
        # MixKeyAndHash, for the token "psk".
        self._chaining_key, mixed, self._key = hkdf(self._chaining_key, secret, 3)
        self._mix_hash(mixed)

    # The initiator.

    def write_init(self, private_key: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """Return our public key and the sealed payload."""
        public = self._generate(private_key)
        self._mix_public_key(public)
        return public, self._seal(payload)

    def read_accept(self, public_key: bytes, sealed: bytes) -> bytes:
        """Return the payload of the answer.

        Raises
        ------
        NotAuthenticError
            If it does not answer what `write_init` returned. The state is then unchanged.
        """
        before = self._hash, self._chaining_key, self._key
        try:
            self._mix_public_key(public_key)
            self._exchange(public_key)
            return self._open(sealed)
        except NotAuthenticError:
            self._hash, self._chaining_key, self._key = before
            raise

    # The responder.

    def read_init(self, public_key: bytes, sealed: bytes) -> bytes:
        """Return the payload of an INIT, without a Diffie-Hellman exchange.

        Raises
        ------
        NotAuthenticError
            If the INIT was made with another key or changed on the way.
        """
        self._remote = public_key
        self._mix_public_key(public_key)
        return self._open(sealed)

    def write_accept(self, private_key: bytes, payload: bytes) -> tuple[bytes, bytes]:
        """Return our public key and the sealed payload of the answer.

        Raises
        ------
        NotAuthenticError
            If the initiator's public key is of small order, which an honest initiator never sends.
        """
        public = self._generate(private_key)
        self._mix_public_key(public)
        self._exchange(self._remote)
        return public, self._seal(payload)

    # Both.

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """The keys of the directions initiator to responder, and back (Split, section 5.2)."""
        first, second = hkdf(self._chaining_key, b"", 2)
        return first, second

    # Private.

    def _generate(self, private_key: bytes) -> bytes:
        self._ephemeral = X25519PrivateKey.from_private_bytes(private_key)
        return self._ephemeral.public_key().public_bytes_raw()

    def _mix_public_key(self, public_key: bytes) -> None:
        """Process the token "e", as patterns with a pre-shared key do (section 9.2)."""
        self._mix_hash(public_key)
        self._mix_key(public_key)

    def _exchange(self, public_key: bytes) -> None:
        """Process the token "ee"."""
        assert self._ephemeral is not None
        try:
            shared = self._ephemeral.exchange(X25519PublicKey.from_public_bytes(public_key))
        except ValueError:
            raise NotAuthenticError("the peer's public key is of small order") from None
        self._mix_key(shared)

    def _mix_hash(self, data: bytes) -> None:
        self._hash = _hash(self._hash + data)

    def _mix_key(self, data: bytes) -> None:
        self._chaining_key, self._key = hkdf(self._chaining_key, data, 2)

    def _seal(self, payload: bytes) -> bytes:
        sealed = cipher_of(self._suite, self._key).encrypt(_FIRST_NONCE, payload, self._hash)
        self._mix_hash(sealed)
        return sealed

    def _open(self, sealed: bytes) -> bytes:
        try:
            payload = cipher_of(self._suite, self._key).decrypt(_FIRST_NONCE, sealed, self._hash)
        except InvalidTag:
            raise NotAuthenticError("the handshake message was made with another key") from None
        self._mix_hash(sealed)
        return payload


def hkdf(chaining_key: bytes, data: bytes, count: int) -> tuple[bytes, ...]:
    """Return `count` outputs of 32 bytes (section 4.3, which is HKDF of RFC 5869)."""
    outputs = HKDF(SHA256(), HASH_BYTES * count, salt=chaining_key, info=b"").derive(data)
    return tuple(outputs[at : at + HASH_BYTES] for at in range(0, len(outputs), HASH_BYTES))


def _hash(data: bytes) -> bytes:
    return sha256(data).digest()
