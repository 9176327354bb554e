"""Outgoing messages: which one is sent next, and how much of each is left.

A message has a place in a stream (`stream`, `number`) and a `kind`, all chosen by the application.
Waiting messages are ordered by priority: control messages, sums of updates, updates, snapshots.
Within a priority the message with the fewest bytes left goes first (shortest remaining processing
time), so a few kilobytes never wait for many megabytes. Messages of one stream begin in order,
because the peer uses them in order: a message that is overtaken again and again would hold up all
later ones.

A message that has begun holds memory and credit at the peer, which ends the connection if it is not
continued. So a message that waited from one check to the next goes before all others, until some of
it has arrived.
"""

import heapq
from collections import deque
from enum import IntEnum
from typing import Final, TypeAlias

from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.errors import UsageError
from gradwire_protocol.limits import MESSAGE_BYTES_MAX, OPEN_MESSAGES_MAX, charge_of
from gradwire_protocol.wire.frames import SHAPES_MAX


class Priority(IntEnum):
    """The order in which waiting messages are sent."""

    CONTROL = 0
    UPDATE = 1
    SNAPSHOT = 2
    LOGGED = 3


Turn: TypeAlias = tuple[int, int, int]
"""Priority, bytes left and key; the smallest turn is sent first."""

OVERDUE: Final = min(Priority) - 1
"""In a turn: the priority of a message that has waited for too long."""

SENT: Final = 1
LOST: Final = 2
ACKED: Final = 3


def check_message(stream: int, number: int, kind: int, size: int) -> None:
    """Refuse a message that cannot be sent.

    Raises
    ------
    UsageError
        If its size, stream, number or kind is out of range.
    """
    if not 1 <= size <= MESSAGE_BYTES_MAX:
        raise UsageError(f"message of {size} bytes; send 1 to {MESSAGE_BYTES_MAX}")
    if not (0 <= stream < 2**16 and 0 <= number < 2**32 and 0 <= kind < 2**16):
        raise UsageError(
            f"message {number} of kind {kind} in stream {stream}; numbers are below 2^32, "
            "kinds and streams below 2^16"
        )


class OutgoingMessage:
    """A message on its way to one peer, with the state of each fragment.

    Parameters
    ----------
    key : int
        Identifies the message within the connection.
    shaped : ShapedMessage
        May be shared with other connections that send the same message.
    """

    __slots__ = ("_acked_count", "_fates", "_left_before", "_lost_count", "begun", "key",
                 "next_fragment", "overdue", "priority", "shaped", "turn")  # fmt: skip

    def __init__(self, key: int, shaped: ShapedMessage, priority: Priority) -> None:
        self.priority = priority
        self.begun = False
        """Whether a fragment was sent, so that the peer has charged its credit."""
        self.turn: Turn | None = None
        """Its place in a heap while any of it is left to send."""
        self.overdue = False
        """Whether it goes before all others."""
        self._left_before = -1
        self.restart(key, shaped)

    def restart(self, key: int, shaped: ShapedMessage) -> None:
        """Start over with another set of fragments."""
        self.key = key
        self.shaped = shaped
        self.next_fragment = 0
        """The first fragment that was never sent."""
        self._fates = bytearray(shaped.count)
        self._lost_count = 0
        self._acked_count = 0

    @property
    def charge(self) -> int:
        """Its share of the peer's credit."""
        return charge_of(self.shaped.total)

    @property
    def complete(self) -> bool:
        """Whether every fragment was acknowledged."""
        return self._acked_count == self.shaped.count

    @property
    def packets_left(self) -> int:
        """Fragments left to send, for the first time or again."""
        return self.shaped.count - self.next_fragment + self._lost_count

    @property
    def bytes_left(self) -> int:
        """Approximate bytes left to send."""
        return self.packets_left * self.shaped.stride

    @property
    def has_lost(self) -> bool:
        """Whether a fragment has to be sent again."""
        return self._lost_count > 0

    def lost_fragments(self, count: int) -> list[int]:
        """Return up to `count` fragments that have to be sent again."""
        indexes: list[int] = []
        at = self._fates.find(LOST)
        while at >= 0 and len(indexes) < count:
            indexes.append(at)
            at = self._fates.find(LOST, at + 1)
        return indexes

    def on_sent(self, first: int, stop: int) -> None:
        """Record that consecutive fragments are being sent for the first time."""
        self._fates[first:stop] = bytes([SENT]) * (stop - first)
        self.next_fragment = stop

    def on_sent_again(self, indexes: list[int]) -> None:
        """Record that fragments are being sent again."""
        for index in indexes:
            self._fates[index] = SENT
        self._lost_count -= len(indexes)

    def on_acked(self, indexes: list[int]) -> bool:
        """Record that fragments arrived; return whether that completes the message."""
        if self.complete:
            return False
        fates = self._fates
        for index in indexes:
            fate = fates[index]
            if fate != ACKED:
                fates[index] = ACKED
                self._acked_count += 1
                self._lost_count -= fate == LOST
        if self.overdue and self.packets_left != self._left_before:
            self.overdue = False  # else the acknowledgement is of what was sent before it waited
        return self.complete

    def check_progress(self) -> None:
        """Make it overdue if nothing of it was sent since the last check."""
        self.overdue |= self.packets_left == self._left_before
        self._left_before = self.packets_left

    def on_lost(self, indexes: list[int]) -> None:
        """Mark fragments for sending again, except those that have arrived since."""
        fates = self._fates
        for index in indexes:
            if fates[index] == SENT:
                fates[index] = LOST
                self._lost_count += 1


class SendQueue:
    """Messages of one connection that are not yet acknowledged."""

    def __init__(self) -> None:
        self.credit = 0
        """Total message bytes that the peer lets us declare."""
        self.declared = 0
        self.bytes_queued = 0
        """Payload of all messages that are not yet acknowledged as a whole."""
        self._messages: dict[int, OutgoingMessage] = {}
        self._next_key = 0
        self._begun: list[Turn] = []
        self._fresh: list[Turn] = []
        self._behind: dict[int, deque[OutgoingMessage]] = {}
        """By stream: the messages behind the first one that has not begun."""
        self._open = 0

    # Input.

    def enqueue(self, shaped: ShapedMessage, priority: Priority) -> None:
        """Append a message."""
        message = OutgoingMessage(self._next_key, shaped, priority)
        self._messages[self._next_key] = message
        self._next_key += 1
        self.bytes_queued += shaped.total
        behind = self._behind.get(shaped.stream)
        if behind is None:
            self._behind[shaped.stream] = deque()
            self._update_turn(message)
        else:
            behind.append(message)

    def on_acked(self, key: int, indexes: list[int]) -> ShapedMessage | None:
        """Record that fragments arrived; return their message if that completes it."""
        message = self._messages.get(key)
        if message is None:
            return None
        if not message.on_acked(indexes):
            self._update_turn(message)  # fragments taken for lost may have arrived
            return None
        del self._messages[key]
        self._open -= 1
        self.bytes_queued -= message.shaped.total
        return message.shaped

    def on_lost(self, key: int, indexes: list[int]) -> None:
        """Queue lost fragments to be sent again."""
        message = self._messages.get(key)
        if message is not None:
            message.on_lost(indexes)
            self._update_turn(message)

    @property
    def has_begun(self) -> bool:
        """Whether a message has begun and is not yet acknowledged as a whole."""
        return self._open > 0

    def check_progress(self) -> None:
        """Let messages go first that have begun and were not continued since the last check."""
        for message in self._messages.values():
            if message.begun:
                message.check_progress()
                self._update_turn(message)

    def reshape(self, fragment_bytes: int) -> None:
        """Cut messages with larger fragments into fragments of this size."""
        for message in list(self._messages.values()):
            shaped = message.shaped
            if min(shaped.total, shaped.fragment_bytes) <= fragment_bytes:
                continue
            if shaped.shape == SHAPES_MAX - 1:
                continue  # the connection will be closed for making no progress
            del self._messages[message.key]
            message.restart(self._next_key, shaped.reshape(fragment_bytes, new_shape=message.begun))
            self._messages[message.key] = message
            self._next_key += 1
            if message.turn is not None or message.begun:
                self._update_turn(message)

    # Output.

    def next_message(self) -> OutgoingMessage | None:
        """Return the message to send from next; None if nothing may be sent."""
        begun, fresh = self._top(self._begun), self._top(self._fresh)
        if fresh is None or (begun is not None and self._begun[0] < self._fresh[0]):
            return begun
        if self._open < OPEN_MESSAGES_MAX and self.declared + fresh.charge <= self.credit:
            return fresh
        # If the most urgent new message does not fit the credit, a smaller one must not overtake it
        # again and again. Messages that have begun may continue.
        return begun

    def on_sent(self, message: OutgoingMessage) -> None:
        """Record that part of the message from `next_message` was sent."""
        if not message.begun:
            message.begun = True
            message.turn = None
            self.declared += message.charge
            self._open += 1
            heapq.heappop(self._fresh)
            behind = self._behind[message.shaped.stream]
            if behind:
                self._update_turn(behind.popleft())
            else:
                del self._behind[message.shaped.stream]
        self._update_turn(message)

    # Private.

    def _update_turn(self, message: OutgoingMessage) -> None:
        if not message.packets_left:
            message.turn = None
            return
        priority = OVERDUE if message.overdue else message.priority
        turn = (priority, message.bytes_left, message.key)
        if turn == message.turn:
            return
        heap = self._begun if message.begun else self._fresh
        if heap and heap[0] == message.turn:
            heapq.heapreplace(heap, turn)
        else:
            heapq.heappush(heap, turn)
        message.turn = turn

    def _top(self, heap: list[Turn]) -> OutgoingMessage | None:
        while heap:
            message = self._messages.get(heap[0][2])
            if message is not None and message.turn == heap[0]:
                return message
            heapq.heappop(heap)  # this entry is outdated
        return None
