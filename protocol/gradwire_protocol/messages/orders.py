"""Messages of operators: ORDER and DONE."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.fields import (
    REASON_CHARACTERS_MAX,
    WORKER_NAME_CHARACTERS_MAX,
    RunName,
    WorkerName,
)
from gradwire_protocol.messages.kinds import RANKS_MAX, Kind
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, Record, text
from gradwire_protocol.messages.work import WORK_NAME_CHARACTERS_MAX, WORKS_MAX

RUN_BYTES_MAX: Final = (
    4 * (NAME_CHARACTERS_MAX + REASON_CHARACTERS_MAX)
    + 1_024
    + WORKS_MAX * (4 * WORK_NAME_CHARACTERS_MAX + 1_536)
)
"""Longest part of a status that is about one run, without its workers. A work names the 16 items
that are held for longest, with at most 64 bytes each."""

RUNS_MAX: Final = 64
"""Most runs of a daemon: every event is offered to their masters until one takes it."""

ANSWER_BYTES_MAX: Final = (
    SMALL_BYTES_MAX
    + RANKS_MAX * (4 * WORKER_NAME_CHARACTERS_MAX + 256)
    + RUNS_MAX * RUN_BYTES_MAX
)  # fmt: skip
"""Longest answer to an order. Besides its name, a worker takes at most 100 bytes of a status and 20
of its version; the rest is for denied names."""

assert ANSWER_BYTES_MAX < MESSAGE_BYTES_MAX, "the longest answer fits a message"


class Action(StrEnum):
    """What an operator can order."""

    STATUS = "status"
    """Report the roster and the progress of the run as JSON."""
    DRAIN = "drain"
    """Let no more workers in, and stop when the last one has left."""
    RESUME = "resume"
    """Let workers in again."""
    DENY = "deny"
    """Accept no key of this name, and close its open connections."""
    ADMIT = "admit"
    """Accept keys of this name again."""
    RELEASE = "release"
    """End the quarantine of a worker and accept its updates that were set aside."""
    EXPEL = "expel"
    """Close the connection of a worker or an observer; it may join again."""
    CHECKPOINT = "checkpoint"
    STOP_TRAINING = "stop-training"
    """Have all workers end their training: their loops see it, finish, and the run is finished."""
    PAUSE_ITEMS = "pause-items"
    """Grant no item any more; workers end those that they hold, and wait."""
    RESUME_ITEMS = "resume-items"
    """Grant items again."""
    END_RUN = "end-run"
    """End the run in progress: its workers are sent away, and the next one to join begins another
    run."""


@dataclass(frozen=True, slots=True)
class Order(Record):
    """An operator's order."""

    action: WorkerName
    """An `Action`; the master refuses one that it does not know."""
    name: WorkerName
    """The name or rank concerned; empty if there is none."""
    run: RunName | None = None
    """The run that it is for; None for the only one."""

    KIND: ClassVar[Kind] = Kind.ORDER


@dataclass(frozen=True, slots=True)
class OrderDone(Record):
    """An order was carried out."""

    text: Annotated[str, text(ANSWER_BYTES_MAX)]
    """The result; for a status, JSON."""

    KIND: ClassVar[Kind] = Kind.DONE
    BYTES_MAX: ClassVar[int] = ANSWER_BYTES_MAX + SMALL_BYTES_MAX
    LIST_ITEMS_MAX: ClassVar[int] = 0
