"""Outgoing messages: cut into fragments, sent in order of urgency, kept until acknowledged.

A message has a place in a stream (`stream`, `number`) and a `kind`, all chosen by the
application. It leaves in fragments of one size, so that what travels is the same for every peer
that gets the same message. Nothing is copied: fragments are views of the payload.
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from gradwire_protocol.limits import MESSAGE_OVERHEAD_BYTES, OPEN_MESSAGES_MAX

Payload: TypeAlias = bytes | bytearray | memoryview


class Priority(IntEnum):
    """What goes first when several messages wait."""

    CONTROL = 0
    UPDATE = 1
    SNAPSHOT = 2


class OutgoingMessage:
    """A message and how far it has got."""

    __slots__ = (
        "_acked",
        "_acked_count",
        "_next",
        "fragment_bytes",
        "fragments",
        "kind",
        "number",
        "payload",
        "stream",
    )

    def __init__(
        self, stream: int, number: int, kind: int, payload: Payload, fragment_bytes: int
    ) -> None:
        self.stream = stream
        self.number = number
        self.kind = kind
        self.payload = memoryview(payload).cast("B")
        self.fragment_bytes = fragment_bytes
        self.fragments = -(-len(self.payload) // fragment_bytes)
        self._next = 0
        self._acked = bytearray(self.fragments)
        self._acked_count = 0

    @property
    def charge(self) -> int:
        """What it costs of the peer's credit."""
        return len(self.payload) + MESSAGE_OVERHEAD_BYTES

    @property
    def begun(self) -> bool:
        """Whether a fragment was sent."""
        return self._next > 0

    @property
    def complete(self) -> bool:
        """Whether every fragment was acknowledged."""
        return self._acked_count == self.fragments

    @property
    def unsent(self) -> "Fragment | None":
        """The first fragment that was never sent; None where all were."""
        return Fragment(self, self._next) if self._next < self.fragments else None

    def advance(self) -> None:
        """Note that `unsent` is being sent."""
        self._next += 1

    def is_acked(self, index: int) -> bool:
        """Return whether a fragment was acknowledged."""
        return bool(self._acked[index])

    def on_acked(self, index: int) -> bool:
        """Note that a fragment arrived; return whether that completes the message."""
        if self._acked[index]:
            return False
        self._acked[index] = 1
        self._acked_count += 1
        return self.complete


@dataclass(frozen=True, slots=True)
class Fragment:
    """One part of a message."""

    message: OutgoingMessage
    index: int

    @property
    def offset(self) -> int:
        """Where in the message it begins."""
        return self.index * self.message.fragment_bytes

    @property
    def payload(self) -> memoryview:
        """Its bytes."""
        return self.message.payload[self.offset : self.offset + self.message.fragment_bytes]


class SendQueue:
    """Messages of one connection that are not yet acknowledged."""

    def __init__(self) -> None:
        self.credit = 0
        """Message bytes that the peer lets us declare in all."""
        self.declared = 0
        self.bytes_queued = 0
        """Payload of all messages that are not yet acknowledged as a whole."""
        self._waiting: dict[Priority, deque[OutgoingMessage]] = {p: deque() for p in Priority}
        self._again: deque[Fragment] = deque()
        self._open = 0

    # Input.

    def push(self, message: OutgoingMessage, priority: Priority) -> None:
        """Append a message."""
        self._waiting[priority].append(message)
        self.bytes_queued += len(message.payload)

    def on_acked(self, fragment: Fragment) -> bool:
        """Note that a fragment arrived; return whether that completes its message."""
        if not fragment.message.on_acked(fragment.index):
            return False
        self._open -= 1
        self.bytes_queued -= len(fragment.message.payload)
        return True

    def on_lost(self, fragment: Fragment) -> None:
        """Send a fragment again, before anything new."""
        if not fragment.message.is_acked(fragment.index):
            self._again.append(fragment)

    # Output.

    def peek(self) -> Fragment | None:
        """Return the fragment to send next; None where nothing may be sent."""
        while self._again:
            fragment = self._again[0]
            if not fragment.message.is_acked(fragment.index):
                return fragment
            self._again.popleft()  # it was only late
        message = self._next_message()
        return message.unsent if message else None

    def take(self, fragment: Fragment) -> bool:
        """Note that `fragment`, which `peek` returned, is being sent.

        Returns
        -------
        bool
            Whether it was sent before.
        """
        if self._again:
            self._again.popleft()
            return True
        message = fragment.message
        if not message.begun:
            self.declared += message.charge
            self._open += 1
        message.advance()
        if message.unsent is None:
            for queue in self._waiting.values():
                if queue and queue[0] is message:
                    queue.popleft()
        return False

    # Private.

    def _next_message(self) -> OutgoingMessage | None:
        for queue in self._waiting.values():
            if not queue:
                continue
            message = queue[0]
            if message.begun:
                return message
            if self._open < OPEN_MESSAGES_MAX and self.declared + message.charge <= self.credit:
                return message
            # No credit for this one. A less urgent one that fits must not overtake it for
            # ever, but one that is already begun may go on.
            for other in self._waiting.values():
                if other and other[0].begun:
                    return other[0]
            return None
        return None
