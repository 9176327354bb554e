"""What memory of a host is bounded by, checked after each of its turns.

The numbers are those of `limits.py` and of the modules that keep them.
"""

from itertools import chain
from typing import Final

from gradwire.worker.inbox import Inbox
from gradwire.worker.update_log import UPDATE_LOG_BYTES_MAX
from gradwire.worker.worker import Worker
from gradwire_protocol import Connection, Endpoint
from gradwire_protocol.limits import (
    HALF_OPEN_MAX,
    OPEN_MESSAGES_MAX,
    RECEIVED_RANGES_MAX,
    charge_of,
)
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX
from gradwire_server.log.log import Log
from gradwire_server.master.master import Master
from gradwire_server.runs.runs import Runs
from support.network import Host


def bytes_for_members(log: Log) -> int:
    """Return the memory of those segments that a member lacks, or has just been sent."""
    acknowledged = (cursor.acknowledged for cursor in log._cursors)
    needed = min(chain(acknowledged, log.reported()), default=log.head)
    return sum(segment.nbytes for segment in log if segment.stop > needed)


AT_ONCE: Final = 16
"""Connections that are looked at after one turn; of more, others after the next."""

WORKER_CONNECTIONS_MAX: Final = 8
"""One that is open, and those that it has just ended: each is silent for some seconds."""


class Bounds:
    """Looks at the memory of hosts."""

    def __init__(self) -> None:
        self.checks = 0
        """How many turns were looked at."""

    def check(self, host: Host) -> None:
        """Look at a host that has had its turn."""
        self.checks += 1
        application = host.application
        if isinstance(application, Runs):
            for _, master in application.masters:
                self._check_master(host.endpoint, master)
        elif isinstance(application, Worker):
            self._check_worker(host.endpoint, application)

    def check_inbox(self, inbox: Inbox) -> None:
        """Look at what waits for a training thread."""
        held = sum(each.nbytes for each in inbox._waiting)
        assert held <= inbox._bytes_max, (
            f"memory: {held} bytes wait in an inbox; the limit is {inbox._bytes_max}"
        )

    # Private.

    def _check_master(self, endpoint: Endpoint, master: Master) -> None:
        config, state = master.config, master.state
        _check("connections", len(endpoint), config.connections_max)
        _check("connections half open", endpoint.half_open, HALF_OPEN_MAX)
        _check("workers", len(state.roster), config.workers_max)
        _check("places kept", len(state.leases), config.workers_max)
        connections = list(endpoint.connections())
        for connection in self._some_of(connections):
            _check_connection(connection)
        if len(connections) <= AT_ONCE:
            held = sum(connection.bytes_held for connection in connections)
            _check("bytes held of all workers", held, config.reassembly_bytes)
        run = state.run
        if run is not None:
            log = run.relay.log
            if not run.relay.is_due:
                kept = log.nbytes - bytes_for_members(log)
                _check("bytes logged", kept, config.update_log_bytes_max)
            _check("bytes beyond that", run.relay.sum_bytes, config.conflation_bytes_max)
            largest = charge_of(8 * run.layout.elements + 2 * SMALL_BYTES_MAX)
            for member in state.roster:
                # One message may always be under way, and another one follow it.
                most = config.relay_backlog_bytes_max + largest
                _check("bytes queued for a worker", run.relay.bytes_under_way(member), most)
            if run.recovery is not None:
                _check("workers back", len(run.recovery.returned), config.workers_max)

    def _check_worker(self, endpoint: Endpoint, worker: Worker) -> None:
        _check("connections", len(endpoint), WORKER_CONNECTIONS_MAX)
        _check("own updates kept", worker.own_updates.nbytes, UPDATE_LOG_BYTES_MAX)
        _check("bytes kept of the log", worker.state.log.nbytes, UPDATE_LOG_BYTES_MAX)
        for connection in endpoint.connections():
            _check_connection(connection)

    def _some_of(self, connections: list[Connection]) -> list[Connection]:
        if len(connections) <= AT_ONCE:
            return connections
        first = self.checks * AT_ONCE % len(connections)
        return connections[first : first + AT_ONCE]


def _check_connection(connection: Connection) -> None:
    if not connection.is_open:
        return
    _check("bytes held", connection.bytes_held, connection._config.window_bytes)
    _check("events that nobody has taken", len(connection._events), 0)
    queue = connection.sender.queue
    _check("messages in flight", queue._open, OPEN_MESSAGES_MAX)
    _check("ranges received", len(connection._traffic.received._numbers), RECEIVED_RANGES_MAX)


def _check(what: str, value: int, most: int) -> None:
    assert value <= most, f"memory: {value} {what}; the limit is {most}"
