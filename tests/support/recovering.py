"""Loss recovery for tests: packets that are easily told apart, and what became of them."""

from typing import Final

import numpy as np

from gradwire_protocol.recovery.recovery import Outcome, Recovery
from gradwire_protocol.recovery.sent_packets import Fate, PacketContents
from support.sending import Diary

SIZE: Final = 1000


def new_recovery() -> tuple[Recovery, Diary]:
    """Return the recovery of a connection that has sent nothing, and what its controller hears."""
    diary = Diary()
    return Recovery(diary), diary


def send(recovery: Recovery, n: int = 1, *, now: float = 0.0) -> None:
    """Send a train: every packet has the fragment with its own number."""
    number = recovery.sent.next_number
    recovery.on_train(range(number, number + n), 0, SIZE, SIZE, app_limited=False, now=now)


def send_other(
    recovery: Recovery,
    contents: PacketContents | None = None,
    *,
    now: float = 0.0,
    eliciting: bool = True,
) -> None:
    """Send a packet that is no fragment and nothing else."""
    recovery.on_packet(SIZE, contents, eliciting=eliciting, now=now)


def arrived(outcome: Outcome) -> list[int]:
    """Return the packets of trains that arrived."""
    fragments = [
        pair for keys, indexes in outcome.arrived for pair in zip(keys, indexes, strict=True)
    ]
    return sorted(int(index) for key, index in fragments if key >= 0)


def lost(outcome: Outcome) -> list[int]:
    """Return the packets of trains that were lost."""
    if outcome.lost is None:
        return []
    return [int(index) for key, index in zip(*outcome.lost, strict=True) if key >= 0]


def in_flight(recovery: Recovery) -> list[int]:
    sent = recovery.sent
    flying = np.flatnonzero(sent.fates(sent.oldest, sent.next_number) == Fate.IN_FLIGHT)
    return [int(number) + sent.oldest for number in flying]
