"""Payloads on their way from one process to another.

A parcel lies in the sender's arena until everyone it goes to has taken it, that is, copied it to
where it is sent from: rows of packets, in which each process writes headers of its own. They take
parcels in the order in which they hear of them, so it is enough to say how many were taken.
"""

from collections import deque

from gradwire_protocol import ShapedMessage
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_server.shards.arena import Arena, size_of
from gradwire_server.shards.records import INLINE_BYTES_MAX, Place


class Parcel:
    """A payload for other processes.

    Whoever makes one holds it, and so does every `Outbox` it is in; with the last one that lets go
    its place is free. One that is short, or finds no room, is its own place.

    Parameters
    ----------
    arena : Arena
        Of this process.
    content : ShapedMessage or bytes-like
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

    def hold(self) -> None:
        """Keep it in its place."""
        self._holders += 1

    def let_go(self) -> None:
        """Let it go, if nobody else holds it."""
        self._holders -= 1
        if not self._holders and isinstance(self.place, tuple):
            self._arena.room.free(self.place[0])


class Outbox:
    """Parcels that one other process has not taken yet."""

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._parcels)

    def add_parcel(self, parcel: Parcel) -> Place:
        """Keep a parcel until it is taken; return what to tell the other process."""
        if isinstance(parcel.place, tuple):
            parcel.hold()
            self._parcels.append(parcel)
        return parcel.place

    def on_taken(self, count: int) -> None:
        """Note that the other process has taken so many."""
        for _ in range(count):
            self._parcels.popleft().let_go()

    def clear(self) -> None:
        """Note that nobody will take any of them."""
        self.on_taken(len(self._parcels))


class Inbox:
    """Parcels of one other process.

    Parameters
    ----------
    arena : Arena
        Of that process.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.taken = 0
        """Of those looked at; who looks has a copy before it says so, and counts anew then."""

    def look(self, place: Place) -> Payload:
        """Return a payload."""
        if isinstance(place, bytes):
            return place
        self.taken += 1
        return self._arena.at(*place)
