"""Validation of a peer's new address (RFC 9000, section 9, in its simplest form).

If an authentic packet, newer than all others, comes from another address, the peer or a NAT in
front of it has changed its address. The new address is challenged a few times. Until it answers,
everything else still goes to the old one, except for one RESPONSE to each packet with a CHALLENGE.
Challenges and responses together never exceed the bytes received from there, so an attacker gains
nothing by replaying packets to turn a connection towards a third party.
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
    """The address of one peer, at first the one proved by the handshake."""

    def __init__(self, address: Address, random_bytes: Callable[[int], bytes]) -> None:
        self.address = address
        self._random_bytes = random_bytes
        self._candidate: Address | None = None
        self._data = b""
        self._tries_left = 0
        self._bytes_allowed = 0
        """Bytes that may still be sent to the candidate: those received from it, less those
        sent."""
        self._next: float | None = None
        self._responses: deque[tuple[bytes, Address]] = deque(maxlen=RESPONSES_MAX)

    @property
    def next_timer(self) -> float | None:
        """When `challenge_to_send` is due; None while no address is in doubt."""
        waits_for_bytes = self._tries_left and self._bytes_allowed < CHALLENGE_DATAGRAM_BYTES
        return None if waits_for_bytes else self._next

    @property
    def is_settled(self) -> bool:
        """Whether no address is in doubt and no response is queued."""
        return self._next is None and not self._responses

    def on_packet(self, address: Address, size: int, now: float) -> None:
        """Record that the newest packet came from `address`, in `size` bytes."""
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
        """Queue a response, if one may be sent to this address."""
        if address != self.address:
            if address != self._candidate or self._bytes_allowed < CHALLENGE_DATAGRAM_BYTES:
                return
            self._bytes_allowed -= CHALLENGE_DATAGRAM_BYTES
        self._responses.append((data, address))

    def response_to_send(self) -> tuple[bytes, Address] | None:
        """Return a queued response and its destination."""
        return self._responses.popleft() if self._responses else None

    def challenge_to_send(self, interval: float, now: float) -> tuple[bytes, Address] | None:
        """Return a challenge and its destination, if one is due; wait `interval` for the next."""
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
