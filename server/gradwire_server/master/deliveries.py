"""Deliveries: what follows when a message was delivered.

An update that all members have is freed; a delivered part of a sum, or buffers, make room for the
next; and a run has finished when no worker lacks any of its updates.
"""

from gradwire_protocol import MessageDelivered
from gradwire_protocol.messages.kinds import (
    CONFLATED_STREAM,
    CONTROL_STREAM,
    SNAPSHOT_STREAM,
)
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
            if self._buffers.on_delivered(member, event.number):
                self._departures.finish_run_if_complete()
                self._departures.end_run_if_over()
        else:
            self._on_run_delivery(member, event)

    def _on_run_delivery(self, member: Member, event: MessageDelivered) -> None:
        """Act on a delivered block of the replica, part of a sum, or update."""
        state = self._state
        metrics, run = state.metrics, state.run
        if event.stream == SNAPSHOT_STREAM:
            if member.feed is not None and member.feed.on_delivered():
                self._repairs.finish_feed(member)
            if run is not None:
                run.relay.on_block_delivered(member, state.now)
        elif run is None:
            return
        elif event.stream == CONFLATED_STREAM:
            updates = run.relay.on_part_delivered(member, state.now)
            if updates is not None:
                metrics.sums_sent.inc()
                metrics.updates_conflated.inc(updates)
                self._departures.finish_run_if_complete()
                self._departures.end_run_if_over()
        else:
            self._on_update_delivered(member, run, event)

    def _on_update_delivered(self, member: Member, run: Run, event: MessageDelivered) -> None:
        state = self._state
        metrics = state.metrics
        accepted_at = run.relay.on_delivered(member, event.stream, event.number, state.now)
        if accepted_at is not None:
            metrics.updates_relayed.inc()
            metrics.relay_delay_seconds.observe(state.now - accepted_at)
        if member.last_sequence is not None:  # the run waits for it
            self._departures.finish_run_if_complete()
