"""Records: what process 0 and a shard say to each other.

A record is a msgpack list that begins with what it is. A connection has a number, which its shard
counts. A *place* is a payload itself, where that is short or the arena was full; else
``[start, bytes]`` in the arena of whoever names it.

::

    a shard reports
    READY
    CONNECTED     number, address, identity          of the peer; nil without keys; see `keys`
    RECEIVED      number, place, stream, number in it, kind, fragment bytes, charge
    DELIVERED     number, stream, number in it
    MOVED         number, address
    DISCONNECTED  number, code, reason, by peer      nothing follows about this connection
    GONE          number                             nor after this, which answers CLOSE
    FIGURES       figures                            answers ASK; see `figures`
    QUIET                                            answers STOP
    LOG           level, logger, line

    process 0 commands
    SEND          number, place, stream, number in it, kind, priority
    RELAY         numbers, place, stream, number in it, kind, priority, fragment bytes
    RELEASE       pairs of number and charge
    CLOSE         number, code, reason
    KEYS          run keys, denied names             in place of those before; see `keys`
    LIMITS        connections of other processes, bytes per second of the link or nil
    ASK
    STOP                        take nobody in any more; answer when all connections are over

    both say
    TAKEN         count         of the places named to me, in their order: they are free

What one side says arrives in order, so what is said about a connection does, too. Both are the
same program in the same version and started by each other, so nothing is checked.
"""

from enum import IntEnum, auto
from typing import Any, Final, Protocol, TypeAlias

from gradwire_protocol.limits import KIB

Record: TypeAlias = tuple[Any, ...]

Place: TypeAlias = bytes | tuple[int, int]
"""A payload, or where it lies in an arena: start, bytes."""

INLINE_BYTES_MAX: Final = 4 * KIB
"""A shorter payload travels in its record: that takes no longer, and nobody has to be told when it
was taken."""


class Poster(Protocol):
    """What records leave by: a `Channel`."""

    def post(self, *record: object) -> None:
        """Add a record to what leaves next."""

    def flush(self) -> None:
        """Send what was posted."""


class Report(IntEnum):
    """What a shard reports."""

    READY = auto()
    CONNECTED = auto()
    RECEIVED = auto()
    DELIVERED = auto()
    MOVED = auto()
    DISCONNECTED = auto()
    GONE = auto()
    FIGURES = auto()
    QUIET = auto()
    LOG = auto()
    TAKEN = auto()


class Command(IntEnum):
    """What process 0 says to a shard."""

    SEND = auto()
    RELAY = auto()
    RELEASE = auto()
    CLOSE = auto()
    KEYS = auto()
    LIMITS = auto()
    ASK = auto()
    STOP = auto()
    TAKEN = auto()
