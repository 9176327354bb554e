"""The initiator's side of the handshake: repeat the INIT until there is an answer.

The responder keeps no timer: it answers every INIT, and the initiator repeats. See `packets` for
the datagrams and `endpoint` for the responder's side.
"""

from gradwire_protocol.errors import InvalidDatagramError
from gradwire_protocol.limits import HANDSHAKE_TIMER_SECONDS, HANDSHAKE_TIMER_SECONDS_MAX
from gradwire_protocol.packets import Accept, Init


class Initiator:
    """One attempt to connect.

    Parameters
    ----------
    init : Init
        What to send.
    timeout_seconds : float
        How long to go on.
    now : float
        When it begins.
    """

    def __init__(self, init: Init, timeout_seconds: float, now: float) -> None:
        self.init = init
        self.datagram = init.pack()
        self.sent = 0
        self.deadline = now + timeout_seconds
        self._interval = HANDSHAKE_TIMER_SECONDS
        self._next = now

    @property
    def next_timer(self) -> float:
        """When to send again or to give up."""
        return min(self._next, self.deadline)

    def datagram_to_send(self, now: float) -> bytes | None:
        """Return the INIT if it is time for it."""
        if now < self._next:
            return None
        self.sent += 1
        self._next = now + self._interval
        self._interval = min(2 * self._interval, HANDSHAKE_TIMER_SECONDS_MAX)
        return self.datagram

    def receive_accept(self, datagram: memoryview) -> Accept:
        """Read the answer; raise `InvalidDatagramError` if it is none to this INIT."""
        accept = Accept.parse(datagram, self.datagram)
        if accept.initiator_session_id != self.init.session_id:
            raise InvalidDatagramError("ACCEPT for another session id")
        return accept
