"""Optimizer states: a worker that joins late is given that of another one, part by part.

::

    asker                      master                       source
    WANT_STATE            ──▶  whose? ──▶ WANT_STATE ──▶    part 0 of state 7
                          ◀──  ◀────────  STATE      ◀──
    (has it)                   ──▶ WANT_STATE ──▶           the next one

Nothing of it is kept here but the parts on their way: a part is asked of the source when the asker
has taken an earlier one. What is in them, nobody looks at. Each attempt has a number of its own, so
that what comes of one that was given up is told from what comes of the next: when a source goes, or
has nothing to give, or lets us wait while there are others, one of these is asked, from the
beginning. A worker that asks has a deadline of its own; where there is no other to ask, it is told
so.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import REASON_CHARACTERS_MAX
from gradwire_protocol.messages.states import StatePart, WantState
from gradwire_server.state.roster import Member, Phase
from gradwire_server.state.state import State

logger = logging.getLogger("gradwire.master")

PARTS_UNDER_WAY_MAX: Final = 16
"""Parts asked for, or on their way to one asker: 4 MiB, as much as of a snapshot. A part goes over
two links, and waits for three processes: at 100 ms for all of that these are 40 MB/s."""

SOURCE_SECONDS: Final = 20.0
"""A source may take so long for a part while there are others: a step of its training, which copies
the state, and a part of 256 KiB on a slow link."""

NOBODY: Final = "no other worker has one to give"


@dataclass(slots=True, eq=False)
class _Transfer:
    """The state that one worker is given."""

    asker: Member
    source: Member | None = None
    number: int = 0
    parts: int = 1
    """As far as is known."""
    asked: int = 0
    """Parts that the source was asked for."""
    arrived: int = 0
    """Of these."""
    waits_since: float = 0.0
    """Since when the source owes the next one."""
    tried: set[Member] = field(default_factory=set)
    reason: str = NOBODY
    """Why there is none, as far as is known."""


class OptimizerStates:
    """Brings together who asks and who gives.

    Parameters
    ----------
    state : State
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._transfers: dict[Member, _Transfer] = {}
        """By who asks."""
        self._numbers = 0

    def __len__(self) -> int:
        """Return how many workers wait for a state."""
        return len(self._transfers)

    def receive(self, member: Member, message: WantState | StatePart) -> None:
        """Take what a worker asks for, or a part of what it was asked for.

        Raises
        ------
        InvalidMessageError
            If it must not say that.
        """
        if isinstance(message, WantState):
            self._take_want(member, message)
        else:
            self._take_part(member, message)

    def on_delivered(self, member: Member, number: int) -> None:
        """Note that a member has a part, by its number in the stream, and ask for another one."""
        member.state_parts.discard(number)
        transfer = self._transfers.get(member)
        if transfer is not None:
            self._ask_on(transfer)

    def conclude(self) -> None:
        """See whether those who ask and those who give are still here."""
        for transfer in list(self._transfers.values()):
            if not self._is_here(transfer.asker):
                self._end(transfer)
            elif transfer.source is not None and not self._is_here(transfer.source):
                transfer.reason = f"{transfer.source.shown_name} has gone"
                self._turn_to_another(transfer)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return min((each.waits_since + SOURCE_SECONDS for each in self._owed()), default=None)

    def handle_timer(self) -> None:
        """Turn to others where a source has let us wait for long."""
        for transfer in list(self._owed()):
            if self._state.now < transfer.waits_since + SOURCE_SECONDS:
                continue
            transfer.waits_since = self._state.now
            if self._candidate(transfer) is not None:
                assert transfer.source is not None
                seconds = f"{SOURCE_SECONDS:g} s"
                transfer.reason = f"{transfer.source.shown_name} did not answer in {seconds}"
                self._turn_to_another(transfer)

    # Private: what comes in.

    def _take_want(self, member: Member, want: WantState) -> None:
        if want.number or want.part:
            raise InvalidMessageError(
                f"{member.name} wants part {want.part} of state {want.number}: that is for us to do"
            )
        transfer = self._transfers.get(member)
        if want.part is None:
            if transfer is not None:
                self._end(transfer)
            return
        if member.asked_state:  # each time, another worker would have to copy its state
            raise InvalidMessageError(f"{member.name} asks for an optimizer's state again")
        member.asked_state = True
        self._transfers[member] = transfer = _Transfer(member)
        self._turn_to_another(transfer)

    def _take_part(self, source: Member, part: StatePart) -> None:
        transfer = next(
            (t for t in self._transfers.values() if t.number == part.number and t.source is source),
            None,
        )
        if transfer is None:
            self._state.metrics.state_parts_dropped.inc()
            return  # it was on its way when somebody else was asked, or the asker went
        if not part.parts:
            transfer.reason = f"{source.shown_name}: {part.reason}"
            self._turn_to_another(transfer)
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
            asker, parts = transfer.asker, transfer.parts
            logger.info(
                "%s has got the state of the optimizer of %s, in %d parts",
                asker.name,
                source.name,
                parts,
            )
            self._end(transfer)
        else:
            self._ask_on(transfer)

    # Private: what follows.

    def _turn_to_another(self, transfer: _Transfer) -> None:
        """Ask a worker that was not asked yet, from the beginning; or say that there is none."""
        self._release(transfer)
        source = self._candidate(transfer)
        if source is None:
            shown = transfer.reason[:REASON_CHARACTERS_MAX]
            self._send(transfer.asker, StatePart(self._next_number(), 0, 0, b"", shown))
            del self._transfers[transfer.asker]
            return
        transfer.source = source
        transfer.tried.add(source)
        transfer.number = self._next_number()
        transfer.parts, transfer.asked, transfer.arrived = 1, 0, 0
        transfer.waits_since = self._state.now
        self._ask_on(transfer)

    def _candidate(self, transfer: _Transfer) -> Member | None:
        """Return whom to ask: who gives to the fewest, and of these who has sent the most updates.

        Its state has the most in it, and is what belongs to the parameters most likely.
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
            and member.aside is None
            and self._is_here(member)
        )

    def _ask_on(self, transfer: _Transfer) -> None:
        """Ask the source for as many parts as may be under way."""
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
        """Let the source forget what it keeps for this."""
        source, transfer.source = transfer.source, None
        if source is not None and self._is_here(source):
            source.link.send(WantState(transfer.number, None))

    def _owed(self) -> Iterator[_Transfer]:
        """Iterate over those whose source owes a part."""
        return (each for each in self._transfers.values() if each.arrived < each.asked)

    def _is_here(self, member: Member) -> bool:
        here = self._state.roster.of(member.link.connection) is member
        return here and not member.going and member.leaving is None

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers
