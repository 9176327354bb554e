"""Optimizer states: a worker that joins late receives the state of another one, part by part.

::

    asker                      master                       source
    WANT_STATE            ──▶  whose? ──▶ WANT_STATE ──▶    part 0 of state 7
                          ◀──  ◀────────  STATE      ◀──
    (has it)                   ──▶ WANT_STATE ──▶           the next one

The master keeps only the parts under way: it asks the source for a part when the asker has received
an earlier one. It does not look into them. When a source leaves, has no state, or is slow while
there are others, the master asks one of these, from the beginning. Each attempt has a number of its
own, which tells its parts from those of an abandoned one. The asker has its own deadline; where no
other worker is left to ask, it is told so.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import REASON_CHARACTERS_MAX
from gradwire_protocol.messages.states.records import StatePart, WantState
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")

PARTS_UNDER_WAY_MAX: Final = 16
"""Parts requested, or under way to one asker: 4 MiB, as for a snapshot. A part crosses two links
and three processes: if all that takes 100 ms, this is 40 MB/s."""

SOURCE_SECONDS: Final = 20.0
"""How long a source may take for a part while other sources are left: a step of its training, which
copies the state, and a part of 256 KiB on a slow link."""

NOBODY: Final = "no other worker has one to give"


@dataclass(slots=True, eq=False)
class _Transfer:
    """The transfer of a state to one worker."""

    asker: Member
    source: Member | None = None
    number: int = 0
    """Of the attempt."""
    parts: int = 1
    """Parts of the state; 1 until the first part says how many."""
    asked: int = 0
    """Parts that the source was asked for."""
    arrived: int = 0
    """Parts that the source has sent."""
    waits_since: float = 0.0
    """Since when the source owes the next part."""
    tried: set[Member] = field(default_factory=set)
    reason: str = NOBODY
    """Why the last attempt has failed."""


class OptimizerStates:
    """Transfers optimizer states from one worker to another."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._transfers: dict[Member, _Transfer] = {}
        """By asker."""
        self._numbers = count(1)

    def __len__(self) -> int:
        """Return how many workers wait for a state."""
        return len(self._transfers)

    def receive_want(self, member: Member, want: WantState) -> None:
        """Act on a request for a state, or on the end of one.

        Raises `InvalidMessageError` if the worker must not send it.
        """
        if want.number or want.part:
            raise InvalidMessageError(
                f"{member.name} asks for part {want.part} of state {want.number}; only the master "
                "asks for single parts"
            )
        transfer = self._transfers.get(member)
        if want.part is None:
            if transfer is not None:
                self._end(transfer)
            return
        if member.asked_state:  # each request makes another worker copy its state
            raise InvalidMessageError(f"{member.name} asks for an optimizer's state again")
        member.asked_state = True
        self._transfers[member] = transfer = _Transfer(member)
        self._ask_next_source(transfer)

    def receive_part(self, source: Member, part: StatePart) -> None:
        """Pass a part of a state on to the worker that has asked for it.

        Raises `InvalidMessageError` if the part is not the next one.
        """
        transfer = next(
            (t for t in self._transfers.values() if t.number == part.number and t.source is source),
            None,
        )
        if transfer is None:
            self._state.metrics.state_parts_dropped.inc()
            return  # another source was asked meanwhile, or the asker has left
        if not part.parts:
            transfer.reason = f"{source.shown_name}: {part.reason}"
            self._ask_next_source(transfer)
            return
        if part.part != transfer.arrived or transfer.arrived == transfer.asked:
            raise InvalidMessageError(f"{source.name} sent part {part.part}, which was not due")
        if part.part >= part.parts or part.parts != (transfer.parts if part.part else part.parts):
            raise InvalidMessageError(
                f"{source.name} sent part {part.part} of {part.parts} of a state with "
                f"{transfer.parts}"
            )
        transfer.parts = part.parts
        transfer.arrived += 1
        transfer.waits_since = self._state.now
        self._send(transfer.asker, part)
        self._state.metrics.state_parts_relayed.inc()
        if transfer.arrived == transfer.parts:
            logger.info(
                "%s has received the optimizer state of %s, in %d parts",
                transfer.asker.name,
                source.name,
                transfer.parts,
            )
            self._end(transfer)
        else:
            self._request_parts(transfer)

    def on_delivered(self, member: Member, number: int) -> None:
        """Note that a part was delivered, by its number in the stream, and request another one."""
        member.state_parts.discard(number)
        transfer = self._transfers.get(member)
        if transfer is not None:
            self._request_parts(transfer)

    def conclude(self) -> None:
        """End transfers whose asker has left; ask another source where the source has left."""
        for transfer in list(self._transfers.values()):
            if not self._is_here(transfer.asker):
                self._end(transfer)
            elif transfer.source is not None and not self._is_here(transfer.source):
                transfer.reason = f"{transfer.source.shown_name} has gone"
                self._ask_next_source(transfer)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return min((each.waits_since + SOURCE_SECONDS for each in self._pending()), default=None)

    def handle_timer(self) -> None:
        """Ask another source where one has not answered for `SOURCE_SECONDS`."""
        for transfer in list(self._pending()):
            if self._state.now < transfer.waits_since + SOURCE_SECONDS:
                continue
            transfer.waits_since = self._state.now
            if self._candidate(transfer) is not None:
                assert transfer.source is not None
                seconds = f"{SOURCE_SECONDS:g} s"
                transfer.reason = f"{transfer.source.shown_name} did not answer in {seconds}"
                self._ask_next_source(transfer)

    # Private.

    def _ask_next_source(self, transfer: _Transfer) -> None:
        """Ask a worker that was not asked yet, from the beginning; if none is left, say so."""
        self._release(transfer)
        source = self._candidate(transfer)
        if source is None:
            shown = transfer.reason[:REASON_CHARACTERS_MAX]
            self._send(transfer.asker, StatePart(next(self._numbers), 0, 0, b"", shown))
            del self._transfers[transfer.asker]
            return
        transfer.source = source
        transfer.tried.add(source)
        transfer.number = next(self._numbers)
        transfer.parts, transfer.asked, transfer.arrived = 1, 0, 0
        transfer.waits_since = self._state.now
        self._request_parts(transfer)

    def _candidate(self, transfer: _Transfer) -> Member | None:
        """Return the next source: the one with the fewest transfers, then with the most updates.

        The state of a worker with many updates fits the shared parameters best.
        """
        run = self._state.run
        versions = {} if run is None else run.relay.versions
        busy = [each.source for each in self._transfers.values()]
        return min(
            (m for m in self._state.roster.workers if self._may_give(m, transfer)),
            key=lambda m: (busy.count(m), -versions.get(m.rank, 0), m.rank),
            default=None,
        )

    def _may_give(self, member: Member, transfer: _Transfer) -> bool:
        return (
            member.join.gives_state
            and member is not transfer.asker
            and member not in transfer.tried
            and member.phase is Phase.LIVE
            and member.last_sequence is None
            and member.quarantine is None
            and self._is_here(member)
        )

    def _request_parts(self, transfer: _Transfer) -> None:
        """Request as many parts from the source as may be under way."""
        asker, source = transfer.asker, transfer.source
        assert source is not None
        while (
            transfer.asked < transfer.parts
            and transfer.asked - transfer.arrived + len(asker.state_parts) < PARTS_UNDER_WAY_MAX
        ):
            if transfer.asked == transfer.arrived:
                transfer.waits_since = self._state.now
            source.link.send(WantState(transfer.number, transfer.asked))
            transfer.asked += 1
        self._state.queues_grew = True

    def _send(self, asker: Member, part: StatePart) -> None:
        asker.state_parts.add(asker.link.send_state_part(part))
        self._state.queues_grew = True

    def _end(self, transfer: _Transfer) -> None:
        self._release(transfer)
        del self._transfers[transfer.asker]

    def _release(self, transfer: _Transfer) -> None:
        """Tell the source that it may drop its copy of the state."""
        source, transfer.source = transfer.source, None
        if source is not None and self._is_here(source):
            source.link.send(WantState(transfer.number, None))

    def _pending(self) -> Iterator[_Transfer]:
        """Iterate over transfers whose source owes a part."""
        return (each for each in self._transfers.values() if each.arrived < each.asked)

    def _is_here(self, member: Member) -> bool:
        here = self._state.roster.of(member.link.connection) is member
        return here and not member.removing and member.leaving is None
