"""Records: the messages between process 0 and a shard.

A record is a msgpack list that begins with its type. A connection has a number, which its shard
assigns. A *place* is the payload itself, where that is short or the arena was full; else
``[start, bytes]`` in the sender's arena.

::

    a shard reports
    READY
    CONNECTED     number, address, identity          identity is nil without keys; see `keys`
    RECEIVED      number, place, stream, number in it, kind, fragment bytes, charge
    DELIVERED     number, stream, number in it
    MOVED         number, address
    DISCONNECTED  number, code, reason, by peer      the last record about this connection
    GONE          number                             answers CLOSE; the last one, too
    FIGURES       figures                            answers ASK; see `figures`
    QUIET                                            answers STOP
    LOG           level, logger, line

    process 0 commands
    SEND          number, place, stream, number in it, kind, priority
    RELAY         numbers, place, stream, number in it, kind, priority, fragment bytes
    RELEASE       pairs of number and charge
    CLOSE         number, code, reason
    KEYS          run keys, denied names             replace the previous ones; see `keys`
    LIMITS        connections of other processes, bytes per second of the link or nil
    ASK                         for figures
    STOP                        accept no connection any more; report QUIET when all are over

    both send
    TAKEN         count         so many more places were copied, in their order, and are free

Records arrive in order, and so do those about one connection. Both sides run the same version of
the same program, and one has started the other, so nothing is checked.
"""

from enum import IntEnum, auto
from typing import Any, Final, Protocol, TypeAlias

from gradwire_protocol.limits import KIB

Record: TypeAlias = tuple[Any, ...]

Place: TypeAlias = bytes | tuple[int, int]
"""A payload, or where it lies in an arena: start, bytes."""

INLINE_BYTES_MAX: Final = 4 * KIB
"""A shorter payload travels in its record: that takes no longer, and needs no TAKEN."""


class Poster(Protocol):
    """Sends records: a `Channel`."""

    def post(self, *record: object) -> None:
        """Queue a record until the next `flush`."""

    def flush(self) -> None:
        """Send the posted records."""


class Report(IntEnum):
    """Types of records from a shard."""

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
    """Types of records from process 0."""

    SEND = auto()
    RELAY = auto()
    RELEASE = auto()
    CLOSE = auto()
    KEYS = auto()
    LIMITS = auto()
    ASK = auto()
    STOP = auto()
    TAKEN = auto()
