"""The handshake by somebody else's code: `noiseprotocol`, which knows all of Noise's patterns."""

import warnings

from noise.connection import Keypair, NoiseConnection

from gradwire_protocol.crypto.suites import NOISE_NAMES, Suite
from gradwire_protocol.wire.packets import PUBLIC_KEY_BYTES


class ReferenceHandshake:
    """One side of a handshake, as `gradwire_protocol.crypto.noise.NoiseHandshake` is one.

    Parameters
    ----------
    suite : Suite
    secret : bytes
    prologue : bytes
    private_key : bytes
        The ephemeral one.
    initiator : bool
    """

    def __init__(
        self, suite: Suite, secret: bytes, prologue: bytes, private_key: bytes, *, initiator: bool
    ) -> None:
        noise = self._noise = NoiseConnection.from_name(NOISE_NAMES[suite])
        noise.set_psks(psk=secret)
        noise.set_prologue(prologue)
        noise.set_keypair_from_private_bytes(Keypair.EPHEMERAL, private_key)
        if initiator:
            noise.set_as_initiator()
        else:
            noise.set_as_responder()
        with warnings.catch_warnings():
            # That of a key which is not a fresh one.
            warnings.simplefilter("ignore", UserWarning)
            noise.start_handshake()

    def write(self, payload: bytes) -> tuple[bytes, bytes]:
        message = bytes(self._noise.write_message(payload))
        return message[:PUBLIC_KEY_BYTES], message[PUBLIC_KEY_BYTES:]

    def read(self, public_key: bytes, sealed: bytes) -> bytes:
        return bytes(self._noise.read_message(public_key + sealed))

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """The keys that this side seals and opens with."""
        protocol = self._noise.noise_protocol
        return protocol.cipher_state_encrypt.k, protocol.cipher_state_decrypt.k
