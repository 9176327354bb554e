"""A queue of outgoing messages for tests, and what a sender does with it."""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gradwire_protocol import Priority
from gradwire_protocol.delivery.outgoing import SendQueue
from gradwire_protocol.delivery.shaped_message import ShapedMessage

FRAGMENT_BYTES: Final = 100
PLENTY: Final = 2**30
Sent: TypeAlias = tuple[int, int, int]
"""A fragment that was sent: key and number of its message, and its index."""


@dataclass(slots=True)
class Line:
    """A queue, and messages of 100 bytes a fragment for it. All are numbered in their order."""

    queue: SendQueue = field(default_factory=SendQueue)
    count: int = 0
    complete: list[int] = field(default_factory=list)
    """Numbers of the messages that have arrived."""

    def push(
        self, *sizes: int, priority: Priority = Priority.UPDATE, stream: int | None = None
    ) -> None:
        """Append messages, each of a stream of its own unless one is given."""
        for size in sizes:
            payload = bytes(i % 251 for i in range(size))
            of_stream = self.count if stream is None else stream
            shaped = ShapedMessage.of(of_stream, self.count, 1, payload, FRAGMENT_BYTES)
            self.queue.enqueue(shaped, priority)
            self.count += 1

    def take(self, most: int = 1) -> list[Sent]:
        """Send some fragments of what goes next, as a sender does."""
        message = self.queue.next_message()
        if message is None:
            return []
        if message.has_lost:
            indexes = message.lost_fragments(most)
            message.on_sent_again(indexes)
        else:
            stop = min(message.next_fragment + most, message.shaped.count)
            indexes = [*range(message.next_fragment, stop)]
            message.on_sent(message.next_fragment, stop)
        self.queue.on_sent(message)
        assert indexes, "what goes next has something to send"
        return [(message.key, message.shaped.number, index) for index in indexes]

    def take_all(self) -> list[Sent]:
        sent = []
        while some := self.take():
            sent += some
        return sent

    def acknowledge(self, *sent: Sent) -> None:
        for key, number, index in sent:
            shaped = self.queue.on_acked(key, [index])
            if shaped is not None:
                assert shaped.number == number
                self.complete.append(number)

    def lose(self, *sent: Sent) -> None:
        for key, _, index in sent:
            self.queue.on_lost(key, [index])


def line_of(*sizes: int, priority: Priority = Priority.UPDATE, credit: int = PLENTY) -> Line:
    line = Line()
    line.queue.credit = credit
    line.push(*sizes, priority=priority)
    return line


def order(sent: list[Sent]) -> list[tuple[int, int]]:
    """Return message and fragment of what was sent."""
    return [(number, index) for _, number, index in sent]
