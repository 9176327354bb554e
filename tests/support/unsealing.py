"""`Unsealing`: what an onlooker reads who knows the keys of a connection's sender.

It is made from the sending half as the handshake left it, and opens with the code of a receiver
that has a copy of its key.
"""

from gradwire_protocol.crypto.epochs import epoch_of, next_key
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.security.protection import Opening, Sealing
from gradwire_protocol.security.sealed import CipherOpening, CipherSealing, Workspace
from gradwire_protocol.wire.packets import TRANSPORT_HEADER
from support.insides import first_key, sealing_keys


class Unsealing:
    """Reads the packets of one direction of a connection, in the order they are sent in.

    Parameters
    ----------
    sealing : Sealing
        The sender's; it has sealed nothing of a later epoch than the first.
    """

    def __init__(self, sealing: Sealing) -> None:
        self._opening: Opening
        self._key: bytes | None = None
        self._epoch = 0
        if isinstance(sealing, CipherSealing):
            suite, self._key = first_key(sealing_keys(sealing))
            self._opening = CipherOpening(suite, self._key, Workspace())
        else:
            assert isinstance(sealing, Checksum)
            self._opening = sealing

    def frames(self, datagram: bytes) -> memoryview:
        """Return what is in a packet."""
        frames = self._opening.open(memoryview(datagram))
        assert frames is not None, "a packet that its receiver cannot open"
        return frames

    def key(self, datagram: bytes) -> bytes | None:
        """Return the key that a packet is sealed with; None in suite 0, where there is none."""
        epoch = epoch_of(TRANSPORT_HEADER.unpack_from(datagram)[4])
        while self._key is not None and self._epoch < epoch:
            self._key = next_key(self._key)
            self._epoch += 1
        return self._key
