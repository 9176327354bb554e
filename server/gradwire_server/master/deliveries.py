"""Deliveries: what follows when a message was delivered.

A delivered update, or buffers, make room for the next; and a run has finished when no worker lacks
any of its updates.
"""

from gradwire_protocol import MessageDelivered
from gradwire_protocol.messages.kinds import CONTROL_STREAM, SNAPSHOT_STREAM
from gradwire_server.master.buffer_relay import BufferRelay
from gradwire_server.master.departures import Departures
from gradwire_server.replica.repairs import Repairs
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run
from gradwire_server.state.state import State


class Deliveries:
    """Passes each delivery on to the part of the master that has sent the message."""

    def __init__(
        self,
        state: State,
        repairs: Repairs,
        departures: Departures,
        buffers: BufferRelay,
    ) -> None:
        self._state = state
        self._repairs = repairs
        self._departures = departures
        self._buffers = buffers

    def note_delivered(self, member: Member, event: MessageDelivered) -> None:
        """Act on the delivery of a message."""
        if event.stream == CONTROL_STREAM:
            if self._state.run is not None:
                self._state.run.relay.on_progress(member, self._state.now)
            if self._buffers.on_delivered(member, event.number):
                self._departures.finish_run_if_complete()
                self._departures.end_run_if_over()
        else:
            self._on_run_delivery(member, event)

    def _on_run_delivery(self, member: Member, event: MessageDelivered) -> None:
        """Act on a delivered block of the replica, update, or part of a sum."""
        state = self._state
        run = state.run
        if event.stream == SNAPSHOT_STREAM:
            if member.feed is not None and member.feed.on_delivered():
                self._repairs.finish_feed(member)
            if run is not None:
                run.relay.on_progress(member, state.now)
        elif run is not None:
            self._on_update_delivered(member, run, event)

    def _on_update_delivered(self, member: Member, run: Run, event: MessageDelivered) -> None:
        """Act on a delivered update, or a part of a sum."""
        state = self._state
        segment = run.relay.on_delivered(member, event.number, state.now)
        if segment is None:
            return
        metrics = state.metrics
        if segment.body is None:
            metrics.sums_sent.inc()
            metrics.updates_conflated.inc(segment.updates_without(member.rank))
        elif not member.observes:
            metrics.updates_relayed.inc()
        if not member.observes:
            metrics.relay_delay_seconds.observe(state.now - segment.accepted_at)
        if member.last_sequence is not None:  # the run waits for it
            self._departures.finish_run_if_complete()
        self._departures.end_run_if_over()
