"""Address validation of a peer that moved (RFC 9000, section 9, in its simplest form).

A packet that is authentic and newer than all others, from an address that is not the peer's,
means that the peer, or a NAT before it, changed its address. The new address is challenged a few
times; until it answers, everything else goes on to the old one, but for one RESPONSE to each packet
that has a CHALLENGE. Both together are never more than the data that came from there, so nobody can
turn a connection towards a third party by replaying packets, and gain anything by it.
"""

from collections import deque
from collections.abc import Callable

from gradwire_protocol.delivery.events import Address
from gradwire_protocol.limits import (
    CHALLENGE_DATAGRAM_BYTES,
    CHALLENGE_TRIES_MAX,
    RESPONSES_MAX,
)


class PathValidation:
    """The address of one peer.

    Parameters
    ----------
    address : Address
        Where it is, as the handshake has shown.
    random_bytes : callable
        Source of unpredictable bytes.
    """

    def __init__(self, address: Address, random_bytes: Callable[[int], bytes]) -> None:
        self.address = address
        self._random_bytes = random_bytes
        self._candidate: Address | None = None
        self._data = b""
        self._tries_left = 0
        self._bytes_allowed = 0
        """Bytes that may still be sent to the candidate: those that came from there, less."""
        self._next: float | None = None
        self._responses: deque[tuple[bytes, Address]] = deque(maxlen=RESPONSES_MAX)

    @property
    def next_timer(self) -> float | None:
        """When `challenge_to_send` has something to say; None while no address is in doubt."""
        waits_for_bytes = self._tries_left and self._bytes_allowed < CHALLENGE_DATAGRAM_BYTES
        return None if waits_for_bytes else self._next

    def on_packet(self, address: Address, size: int, now: float) -> None:
        """Note that the newest packet so far came from `address`, in `size` bytes."""
        if address == self.address:
            self._drop_candidate()
            return
        if address != self._candidate:
            self._candidate = address
            self._data = self._random_bytes(8)
            self._tries_left = CHALLENGE_TRIES_MAX
            self._bytes_allowed = 0
            self._next = now
        self._bytes_allowed += size

    def on_challenge(self, data: bytes, address: Address) -> None:
        """Owe a response, if one may go to where the challenge came from."""
        if address != self.address:
            if address != self._candidate or self._bytes_allowed < CHALLENGE_DATAGRAM_BYTES:
                return
            self._bytes_allowed -= CHALLENGE_DATAGRAM_BYTES
        self._responses.append((data, address))

    def response_to_send(self) -> tuple[bytes, Address] | None:
        """Return a response that is owed, and where it goes."""
        return self._responses.popleft() if self._responses else None

    def challenge_to_send(self, interval: float, now: float) -> tuple[bytes, Address] | None:
        """Return a challenge and where it goes, if one is due; the next after `interval`."""
        due = self.next_timer
        if due is None or now < due or self._candidate is None:
            return None
        if not self._tries_left:
            self._drop_candidate()
            return None
        self._tries_left -= 1
        self._bytes_allowed -= CHALLENGE_DATAGRAM_BYTES
        self._next = now + interval
        return self._data, self._candidate

    def on_response(self, data: bytes, address: Address) -> bool:
        """Return whether this response moves the peer to `address`."""
        if not self._data or data != self._data or address != self._candidate:
            return False
        self.address = address
        self._drop_candidate()
        return True

    def _drop_candidate(self) -> None:
        self._candidate = None
        self._data = b""
        self._next = None
