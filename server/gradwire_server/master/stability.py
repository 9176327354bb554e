"""Stability: tells everyone which updates everyone has, now and then.

Who sent them keeps them until then. Where there is a standby, nothing is said while fewer than half
of the voters hold on to this master; see `terms`.
"""

from gradwire_protocol.messages.updates import Stable
from gradwire_server.master.terms import Terms
from gradwire_server.state.state import State


class Stability:
    """Knows when to say it."""

    def __init__(self, state: State, terms: Terms) -> None:
        self._state = state
        self._terms = terms
        self._due: float | None = None

    def expect(self) -> None:
        """Note that an update was accepted: it will be stable some time."""
        if self._due is None:
            self._put_off()

    def conclude(self) -> None:
        """Say soon what has not been said, if the run has been told nothing."""
        run = self._state.run
        if run is not None and run.has_untold:
            # What is stable may not change any more, and somebody wait to hear of it.
            run.has_untold, run.stable_told = False, {}
            self.expect()

    def handle_timer(self) -> None:
        """Say what is stable, when it is time to, and has changed."""
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
        if stable != run.stable_told:
            run.stable_told = stable
            self._state.tell_all(Stable(stable))
        if run.relay.unstable:
            self._put_off()

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return self._due

    def _put_off(self) -> None:
        self._due = self._state.now + self._state.config.stable_interval_seconds
