"""Protection: sealing and opening of packets, in one direction of a connection.

Every suite has both: suite 0 in `checksum`, the others in `sealed`, with the same methods. In all
of them a packet is a whole number of 32-bit words whose last 16 bytes are the tag, so no other code
depends on the suite. What is sealed or opened together is valid until the next packet of the same
endpoint is.
"""

from typing import TypeAlias

from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.security.sealed import CipherOpening, CipherSealing

Sealing: TypeAlias = Checksum | CipherSealing
"""Seals outgoing packets. No packet number may be used twice."""

Opening: TypeAlias = Checksum | CipherOpening
"""Opens incoming packets."""
