"""Deliveries: what follows when a member has what it was sent.

Of an update that all have, nothing is kept any more; a sum makes room for the next one; and a run
is finished when nobody lacks anything of it.
"""

from gradwire_protocol import Connection, MessageDelivered
from gradwire_protocol.messages import CONFLATED_STREAM, CONTROL_STREAM, SNAPSHOT_STREAM
from gradwire_server.departures import Departures
from gradwire_server.repairs import Repairs
from gradwire_server.state import State


class Deliveries:
    """Hears of them.

    Parameters
    ----------
    state : State
    repairs : Repairs
    departures : Departures
    """

    def __init__(self, state: State, repairs: Repairs, departures: Departures) -> None:
        self._state = state
        self._repairs = repairs
        self._departures = departures

    def take(self, connection: Connection, event: MessageDelivered) -> None:
        """Act on a message that has arrived at the other side."""
        state = self._state
        state.lobby.on_delivered(connection, event, state.now)
        member = state.roster.of(connection)
        if member is None:
            return
        metrics, run = state.metrics, state.run
        if event.stream == SNAPSHOT_STREAM:
            if member.feed is not None and member.feed.on_delivered():
                self._repairs.fed(member)
            if run is not None:
                run.relay.on_block_delivered(member, state.now)
        elif event.stream == CONFLATED_STREAM and run is not None:
            updates = run.relay.on_part_delivered(member, state.now)
            if updates is not None:
                metrics.sums_sent.inc()
                metrics.updates_conflated.inc(updates)
                self._departures.finish_if_all_have()
                self._departures.end_if_over()
        elif event.stream != CONTROL_STREAM and run is not None:
            accepted_at = run.relay.on_delivered(member, event.stream, event.number, state.now)
            if accepted_at is not None:
                metrics.updates_relayed.inc()
                metrics.relay_delay.observe(state.now - accepted_at)
            if event.stream == member.rank or member.last_sequence is not None:
                # The run does not finish without that, be it a correction or a peer's update.
                self._departures.finish_if_all_have()
