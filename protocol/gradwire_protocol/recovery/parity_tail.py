"""`ParityTail`: parity for the last messages before a sender pauses.

When nothing else is to be sent, a lost fragment of the last messages costs a round trip. Parity
fragments avoid that where the path loses packets now and then.
"""

from collections import deque

from gradwire_protocol.delivery.outgoing import OutgoingMessage
from gradwire_protocol.delivery.parity import parity_of, parity_pays
from gradwire_protocol.recovery.loss_rate import LossRate
from gradwire_protocol.wire.frames import Data, parity_groups


class ParityTail:
    """The last messages of one connection before a pause."""

    __slots__ = ("_fragments", "_messages", "loss")

    def __init__(self) -> None:
        self.loss = LossRate()
        self._messages: deque[OutgoingMessage] = deque()
        self._fragments: deque[tuple[OutgoingMessage, Data]] = deque()

    @property
    def has_pending(self) -> bool:
        """Whether `next_parity` may return a fragment."""
        return bool(self._messages or self._fragments)

    def schedule_parity(self, message: OutgoingMessage) -> None:
        """Schedule parity for a fully sent message with nothing queued behind it."""
        if not message.parity_sent and parity_pays(self.loss.rate, message.shaped.count):
            message.parity_sent = True
            self._messages.append(message)

    def next_parity(self) -> Data | None:
        """Return a parity fragment of a message that is not yet acknowledged as a whole."""
        while self._messages or self._fragments:
            if self._fragments:
                message, data = self._fragments.popleft()
                if not message.complete and data.shape == message.shaped.shape:
                    return data
            else:
                message = self._messages.popleft()
                shaped = message.shaped
                for group in range(parity_groups(shaped.count)):
                    self._fragments.append((message, parity_of(shaped, group)))
        return None
