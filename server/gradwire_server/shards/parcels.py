"""Payloads on their way from one process to another.

A parcel stays in the sender's arena until every receiver has copied it into its own rows of
packets, in which each process writes its own headers. Receivers copy parcels in the order of the
records, so it is enough to report how many they have copied.
"""

from collections import deque

from gradwire_protocol import ShapedMessage
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_server.shards.arena import Arena, size_of
from gradwire_server.shards.records import INLINE_BYTES_MAX, Place


class Parcel:
    """A payload for other processes, with a count of its holders.

    Its creator holds it, and so does every `Outbox` it is in; when the last one lets go, its memory
    in this process's arena is freed. A short payload, or one that the arena has no room for,
    travels in the record.
    """

    __slots__ = ("_arena", "_holders", "content", "place")

    def __init__(self, arena: Arena, content: ShapedMessage | Payload) -> None:
        self.content = content
        self._arena = arena
        self._holders = 1
        size = size_of(content)
        start = arena.store(content) if size > INLINE_BYTES_MAX else None
        if start is not None:
            self.place: Place = start, size
        elif isinstance(content, ShapedMessage):
            self.place = bytes(content.payload)
        else:
            self.place = bytes(content)

    def retain(self) -> None:
        """Add a holder."""
        self._holders += 1

    def release(self) -> None:
        """Remove a holder; free the memory after the last one."""
        self._holders -= 1
        if not self._holders and isinstance(self.place, tuple):
            self._arena.room.free(self.place[0])


class Outbox:
    """Parcels that one other process has not copied yet."""

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()

    def __len__(self) -> int:
        """Return the number of parcels."""
        return len(self._parcels)

    def add_parcel(self, parcel: Parcel) -> Place:
        """Hold a parcel until it was copied; return the place for the record."""
        if isinstance(parcel.place, tuple):
            parcel.retain()
            self._parcels.append(parcel)
        return parcel.place

    def on_taken(self, count: int) -> None:
        """Note that the other process has copied so many more parcels."""
        for _ in range(count):
            self._parcels.popleft().release()

    def clear(self) -> None:
        """Let go of all parcels: the other process has ended."""
        self.on_taken(len(self._parcels))


class Inbox:
    """Reads the parcels of one other process, in that one's arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.taken = 0
        """Parcels of the arena that were read since the last report of TAKEN.

        The caller of `payload_at` copies the payload before it reports, and resets this count then.
        """

    def payload_at(self, place: Place) -> Payload:
        """Return the payload at a place, without copying it."""
        if isinstance(place, bytes):
            return place
        self.taken += 1
        return self._arena.at(*place)
