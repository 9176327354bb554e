"""Stability: tells all members, at intervals, which updates all of them have.

Workers keep updates until these are stable. Where there is a standby, nothing is declared stable
while fewer than half of the voters follow this master; see `terms`.
"""

from gradwire_protocol.messages.updates import Stable
from gradwire_server.master.items import Items
from gradwire_server.master.terms import Terms
from gradwire_server.state.state import State


class Stability:
    """Sends STABLE when it is due and has changed."""

    def __init__(self, state: State, terms: Terms, items: Items) -> None:
        self._state = state
        self._terms = terms
        self._items = items
        self._due: float | None = None

    def expect(self) -> None:
        """Note that an update was accepted, and will become stable."""
        if self._due is None:
            self._put_off()

    def conclude(self) -> None:
        """Send STABLE again soon, if a worker has returned that may have missed it."""
        run = self._state.run
        if run is not None and run.must_repeat_stable:
            # No further update may come, and the worker waits to hear what is stable.
            run.must_repeat_stable, run.stable_sent = False, Stable(0, {})
            self.expect()

    def handle_timer(self) -> None:
        """Send STABLE, if it is due and has changed."""
        if self._due is None or self._state.now < self._due:
            return
        self._due = None
        run = self._state.run
        if run is None:
            return
        if not self._terms.holds_half:
            self._put_off()
            return
        stable = run.relay.stable
        if stable != run.stable_sent:
            run.stable_sent = stable
            self._state.tell_all(stable)
            self._items.note_stable()
        if run.relay.unstable or (run.relay.log.head and not stable.position):
            self._put_off()

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return self._due

    def _put_off(self) -> None:
        self._due = self._state.now + self._state.config.stable_interval_seconds
