"""Messages of operators: ORDER and DONE."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import WORKER_NAME, WORKER_NAME_CHARACTERS_MAX
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Check, Record, text

ANSWER_BYTES_MAX: Final = SMALL_BYTES_MAX + RANKS_MAX * (4 * WORKER_NAME_CHARACTERS_MAX + 256)
"""What answers an order: besides its name, a worker takes at most 100 bytes of a status, and its
version 20; the rest is for names that are denied."""

assert ANSWER_BYTES_MAX < MESSAGE_BYTES_MAX, "the longest answer fits a message"


class Action(StrEnum):
    """What an operator can have done."""

    STATUS = "status"
    """Say who takes part and how far the run has got, as JSON."""
    DRAIN = "drain"
    """Let nobody in any more, and stop when the last worker has left."""
    RESUME = "resume"
    """Let workers in again."""
    DENY = "deny"
    """Accept no key of this name, and close what is open of it."""
    ADMIT = "admit"
    """Accept them again."""
    RELEASE = "release"
    """End the quarantine of a worker: what was kept aside is accepted."""
    EXPEL = "expel"
    """Close the connection of a worker or an observer; it may join again."""
    CHECKPOINT = "checkpoint"
    """Write down what there is of the run."""


ANSWER: Final = text(ANSWER_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Order(Record):
    """An operator wants something done."""

    action: str
    """An `Action`; one that the master does not know is refused."""
    name: str
    """Whom or which rank it is about; empty where it is about nobody."""

    KIND: ClassVar[Kind] = Kind.ORDER
    CHECKS: ClassVar[Mapping[str, Check]] = {"action": WORKER_NAME, "name": WORKER_NAME}


@dataclass(frozen=True, slots=True)
class OrderDone(Record):
    """An order was carried out."""

    text: str
    """What there is to say about it; the status as JSON."""

    KIND: ClassVar[Kind] = Kind.DONE
    CHECKS: ClassVar[Mapping[str, Check]] = {"text": ANSWER}
    BYTES_MAX: ClassVar[int] = ANSWER_BYTES_MAX + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0
