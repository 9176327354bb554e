"""`OptimizerStateExchange`: workers ask for another worker's optimizer state, and give their own.

::

    joiner                     master                       another worker
    WANT_STATE            ──▶  whose? ──▶ WANT_STATE ──▶    copied at the end of its next step
    put together          ◀──  ◀────────  STATE      ◀──    part 0
                               ──▶ WANT_STATE ──▶           the next part, until all have come

The master asks for parts no faster than the joiner takes them. When the giving worker goes away in
the middle, the master asks another one, with another number and from the beginning. A joiner that
has lost its connection asks again when it is back: the master may be another one.

All of it lives on the network thread. A `StateKeeper` on the training thread's side has the
optimizer. One copy at a time is kept, for all workers that are given it.
"""

from typing import Final

from gradwire.optimizer.state import PackedState, StateHeader, UnfitStateError
from gradwire.worker.state import Stage, WorkerState, printable
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.states.records import StatePart, WantState

COPY_SECONDS: Final = 60.0
"""How long a copy is kept after it was last wanted, and how old it may be for a further worker."""

NOT_SHARED: Final = "it does not share the state of its optimizer"
NO_STEP: Final = "it has made no step yet"
KEPT_NO_LONGER: Final = "the rest of it was not asked for in time"


class StateKeeper:
    """Keeps no state; the owner of an optimizer overrides it. Every method returns at once."""

    def unpacked(self, header: StateHeader) -> PackedState:
        """Return where a state is put together; raise `UnfitStateError` if it does not fit."""
        raise UnfitStateError(NOT_SHARED)

    def on_state_wanted(self) -> None:
        """Copy the state at the end of the next step, and post `OptimizerStateExchange.give`."""

    def on_state_not_wanted(self) -> None:
        """Make no copy: no worker waits for it any more."""

    def on_state(self, state: PackedState | None, reason: str) -> None:
        """Take the state that was asked for; None, with a reason, if there is none."""


class OptimizerStateExchange:
    """One worker's part in the exchange."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._keeper = StateKeeper()
        # What we want.
        self._wants = False
        self._asked = False
        """Whether this master was asked."""
        self._number = 0
        """Of the state that is being received."""
        self._next = 0
        """The part that is due."""
        self._arriving: PackedState | None = None
        # What we give.
        self._refusal: str | None = NOT_SHARED
        """Why we give none; None if we do."""
        self._waiting: set[int] = set()
        """Numbers of requests that wait for a copy."""
        self._given: set[int] = set()
        """Numbers of requests that the copy is given to."""
        self._copy: PackedState | None = None
        self._copied_at = self._wanted_at = 0.0
        """When the copy was made, and when it was last wanted."""

    # What the session wants.

    def ask(self, now: float) -> None:
        """Ask for the state of another worker; `StateKeeper.on_state` gets it."""
        self._wants = True
        self.proceed()

    def give_up(self, now: float) -> None:
        """Stop asking."""
        self._stop_asking()

    def set_keeper(self, keeper: StateKeeper) -> None:
        """Set the owner of our optimizer; to be called before the worker dials."""
        self._keeper = keeper
        self._refusal = NO_STEP

    def start_giving(self, now: float) -> None:
        """Give our state to workers that ask for it, from now on: there is one."""
        self._refusal = None

    def give(self, copy: PackedState, now: float) -> None:
        """Send the state to the requests that wait for it; it must not change any more."""
        if not self._waiting:
            return  # the requests were withdrawn meanwhile
        self._copy, self._copied_at, self._wanted_at = copy, now, now
        self._given |= self._waiting
        for number in sorted(self._waiting):
            self._send(number, 0)
        self._waiting.clear()

    def refuse(self, reason: str, now: float) -> None:
        """Tell the requests that wait why they are given none."""
        for number in sorted(self._waiting):
            self._send_none(number, printable(reason))
        self._waiting.clear()

    def stop_giving(self, reason: str, now: float) -> None:
        """Refuse further requests; those that are given a copy get the rest of it."""
        self._refusal = reason
        self.refuse(reason, now)

    # What the master says.

    def proceed(self) -> None:
        """Ask a master that was not asked yet, once we are live."""
        link = self._worker.link
        if self._wants and not self._asked and self._worker.stage is Stage.LIVE and link:
            self._asked = True
            link.send(WantState(0, 0))

    def receive(self, message: StatePart | WantState, now: float) -> None:
        """Take a part of the state that we asked for, or a request for our own.

        Raises `InvalidMessageError` if our state has no such part.
        """
        if isinstance(message, StatePart):
            self._take_part(message)
        elif message.part is None:
            self._waiting.discard(message.number)
            self._given.discard(message.number)
            self._drop_copy()
        else:
            self._take_want(message.number, message.part, now)

    def start_over(self) -> None:
        """Forget what the last connection has brought, and its requests."""
        self._asked = False
        self._number = 0
        self._forget_arriving()
        self._waiting.clear()
        self._given.clear()
        self._drop_copy()

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return None if self._copy is None else self._wanted_at + COPY_SECONDS

    def handle_timer(self, now: float) -> None:
        """Forget a copy that no worker has wanted for long."""
        due = self.next_timer()
        if due is not None and now >= due:
            for number in sorted(self._given):
                self._send_none(number, KEPT_NO_LONGER)
            self._given.clear()
            self._drop_copy()

    # Private.

    def _take_part(self, part: StatePart) -> None:
        if not self._asked or part.number < self._number:
            return  # of a state that we do not wait for any more
        if not part.parts:
            self._end(None, part.reason)
            return
        if part.number > self._number:
            self._number, self._next, self._arriving = part.number, 0, None
        try:
            self._add_part(part)
        except UnfitStateError as error:
            self._stop_asking()
            self._keeper.on_state(None, f"that of another worker does not fit: {error}")

    def _take_want(self, number: int, part: int, now: float) -> None:
        if number in self._given:
            self._wanted_at = now
            self._send(number, part)
        elif part:
            self._send_none(number, KEPT_NO_LONGER)
        elif self._refusal is not None:
            self._send_none(number, self._refusal)
        elif len(self._given) + len(self._waiting) >= RANKS_MAX:
            self._send_none(number, "too many ask for it")
        elif self._copy is not None and now < self._copied_at + COPY_SECONDS:
            self._given.add(number)
            self._wanted_at = now
            self._send(number, part)
        else:
            self._waiting.add(number)
            self._want_copy()

    def _add_part(self, part: StatePart) -> None:
        if part.part != self._next:
            raise UnfitStateError(f"part {part.part} where part {self._next} belongs")
        if self._arriving is None:
            try:
                header = StateHeader.parse(part.body)
            except InvalidMessageError as error:
                raise UnfitStateError(str(error)) from None
            self._arriving = self._keeper.unpacked(header)
        else:
            self._arriving.set_part(part.part, part.body)
        if part.parts != self._arriving.parts:
            raise UnfitStateError(f"it has {part.parts} parts where {self._arriving.parts} belong")
        self._next += 1
        if self._next == part.parts:
            self._end(self._arriving, "")

    def _end(self, state: PackedState | None, reason: str) -> None:
        """Hand over the state that has come."""
        self._wants = self._asked = False
        self._forget_arriving()
        self._keeper.on_state(state, reason)

    def _stop_asking(self) -> None:
        link = self._worker.link
        if self._asked and link is not None:
            link.send(WantState(0, None))
        self._wants = self._asked = False
        self._forget_arriving()

    def _forget_arriving(self) -> None:
        self._next, self._arriving = 0, None

    def _send(self, number: int, part: int) -> None:
        assert self._copy is not None
        if part >= self._copy.parts:
            raise InvalidMessageError(f"part {part} wanted of a state with {self._copy.parts}")
        self._answer(StatePart(number, part, self._copy.parts, self._copy.part(part)))

    def _send_none(self, number: int, reason: str) -> None:
        self._answer(StatePart(number, 0, 0, b"", reason))

    def _answer(self, part: StatePart) -> None:
        if self._worker.link is not None:
            self._worker.link.send_state_part(part)

    def _want_copy(self) -> None:
        """Have the state copied, if no copy is in use."""
        if self._copy is None and self._waiting:
            self._keeper.on_state_wanted()

    def _drop_copy(self) -> None:
        """Forget a copy that is given to no request; requests that came too late get another."""
        if not self._given and self._copy is not None:
            self._copy = None
            self._want_copy()
        if not self._waiting:
            self._keeper.on_state_not_wanted()
