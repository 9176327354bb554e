"""Suites: numbers of the wire, and the algorithms behind them."""

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from gradwire_protocol import Suite
from gradwire_protocol.crypto.suites import (
    CIPHER_KEY_BYTES,
    CIPHER_NONCE_BYTES,
    CIPHERS,
    NOISE_NAMES,
    cipher_of,
)
from gradwire_protocol.limits import TAG_BYTES

SEALED = sorted(set(Suite) - {Suite.CHECKSUM})


def test_the_numbers_are_those_of_the_wire() -> None:
    assert {suite.name: suite.value for suite in Suite} == {"CHECKSUM": 0, "AES": 1, "CHACHA": 2}


def test_every_suite_but_0_has_a_cipher_and_a_handshake() -> None:
    assert sorted(CIPHERS) == sorted(NOISE_NAMES) == SEALED
    assert {suite: CIPHERS[suite] for suite in SEALED} == {
        Suite.AES: AESGCM,
        Suite.CHACHA: ChaCha20Poly1305,
    }


@pytest.mark.parametrize("suite", SEALED)
def test_what_a_cipher_seals_opens_with_the_same_key_nonce_and_header_only(suite: Suite) -> None:
    key, nonce, header = bytes(CIPHER_KEY_BYTES), bytes(CIPHER_NONCE_BYTES), b"header"
    cipher = cipher_of(suite, key)
    sealed = cipher.encrypt(nonce, b"data", header)

    assert len(sealed) == len(b"data") + TAG_BYTES
    assert cipher.decrypt(nonce, sealed, header) == b"data"
    for other in (
        (cipher_of(suite, b"k" * CIPHER_KEY_BYTES), nonce, header),
        (cipher, b"n" * CIPHER_NONCE_BYTES, header),
        (cipher, nonce, b"another"),
    ):
        with pytest.raises(InvalidTag):
            other[0].decrypt(other[1], sealed, other[2])


@pytest.mark.parametrize("suite", SEALED)
def test_the_library_opens_in_place(suite: Suite) -> None:
    """What came is opened where it lies; a library that wrote first would destroy it."""
    cipher = cipher_of(suite, bytes(CIPHER_KEY_BYTES))
    for size in (0, 1, 15, 16, 17, 1348, 8848):
        data = bytes(range(256)) * (size // 256 + 1)
        nonce = size.to_bytes(CIPHER_NONCE_BYTES, "little")
        buffer = bytearray(cipher.encrypt(nonce, data[:size], b"header"))
        view = memoryview(buffer)

        assert cipher.decrypt_into(nonce, view, b"header", view[:size]) == size
        assert buffer[:size] == data[:size]
