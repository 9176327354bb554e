"""`state_of`: all that an endpoint knows, as plain data, so that two of them can be compared."""

from collections import deque
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from itertools import count
from random import Random
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import numpy as np

from gradwire_protocol.delivery.incoming import IncomingMessage
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.recovery.sent_packets import Fate, SentPackets
from support.insides import came_of, trains_of

State: TypeAlias = Any
"""Numbers, texts and bytes, and lists of these."""


def state_of(thing: object) -> State:
    """Return what an object and all that it refers to hold.

    Dictionaries in their order, and objects met again by their place. Memory that nobody has
    written, and what only makes something faster, are left out.
    """
    return _Walk().of(thing)


_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_SLOTS: dict[type, list[str]] = {}


@dataclass(slots=True)
class _Walk:
    met: dict[int, int] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    """Else another object could take the place of one that was met."""

    def of(self, thing: Any) -> State:
        if type(thing) in _PLAIN:
            return thing
        match thing:
            case list() | tuple() | deque():
                return [self.of(item) for item in thing]
            case dict():
                return [[self.of(key), self.of(value)] for key, value in thing.items()]
            case MethodType():
                return [thing.__name__, self.of(thing.__self__)]
            case Enum() | bytearray() | memoryview() | np.ndarray() | np.generic() | count():
                return _of_value(thing)
            case FunctionType():
                return thing.__qualname__
        return self._of_object(thing)

    def _of_object(self, thing: Any) -> State:
        place = self.met.get(id(thing))
        if place is not None:
            return f"object {place}"
        self.met[id(thing)] = len(self.met)
        self.kept.append(thing)
        match thing:
            case Random():
                return hash(thing.getstate())
            case ShapedMessage():
                return [*_names(thing), bytes(thing.payload)]
            case IncomingMessage():
                return self._of_incoming(thing)
            case SentPackets():
                return self._of_sent(thing)
        held = [[name, self.of(getattr(thing, name))] for name in _fields_of(thing)]
        assert held or is_dataclass(thing), f"nothing is known of {thing}"
        return [type(thing).__name__, held]

    def _of_incoming(self, message: IncomingMessage) -> State:
        shaped = message.shaped
        received = came_of(message)
        rows = [shaped.payload_of(i).tobytes() for i, came in enumerate(received) if came]
        return [*_names(shaped), received, rows, message.received]

    def _of_sent(self, sent: SentPackets) -> State:
        numbers = np.arange(sent.oldest, sent.next_number)
        keys, indexes = (column.tolist() for column in sent.fragments(numbers))
        fates, sizes = sent.fates(sent.oldest, sent.next_number).tolist(), sent.sizes(numbers)
        packets = [
            [fate]
            if fate == Fate.SKIPPED
            else [fate, sent.sent_at(i), int(sizes[i - sent.oldest]), key, index if key >= 0 else 0]
            for i, fate, key, index in zip(numbers.tolist(), fates, keys, indexes, strict=True)
        ]
        in_flight = [sent.bytes_in_flight, sent.packets_in_flight]
        return [sent.oldest, packets, in_flight, self.of(sent.contents), self.of(trains_of(sent))]


def _names(shaped: ShapedMessage) -> list[int]:
    return [shaped.stream, shaped.number, shaped.kind, shaped.total, shaped.fragment_bytes,
            shaped.shape]  # fmt: skip


def _of_value(thing: Any) -> State:
    match thing:
        case Enum():
            return thing.name
        case bytearray() | memoryview():
            return bytes(thing)
        case np.ndarray():
            return [str(thing.dtype), thing.tolist()]
        case np.generic():
            return thing.item()
    return repr(thing)


def _fields_of(thing: object) -> list[str]:
    kind = type(thing)
    if kind not in _SLOTS:
        slots = (name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
        _SLOTS[kind] = sorted(slots)
    names = [*_SLOTS[kind], *getattr(thing, "__dict__", ())]
    return [name for name in names if hasattr(thing, name)]
