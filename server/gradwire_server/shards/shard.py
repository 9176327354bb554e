"""A shard: a process with some of a master's connections.

Process 0 starts ``python -m gradwire_server.shards.shard SETUP``, which ends with it. Events of the
connections go to process 0, and its commands go to the connections. A shard ignores SIGINT and
SIGTERM, which terminals and service managers send to all processes of a group: process 0 closes all
connections, and then the channel.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from time import time_ns
from typing import Any

from gradwire_protocol import Connection, Credentials, Endpoint, Event, SessionIds
from gradwire_server.shards.arena import Arena
from gradwire_server.shards.channel import Channel
from gradwire_server.shards.figures import Figures
from gradwire_server.shards.keys import read_keyring
from gradwire_server.shards.local import LocalShard
from gradwire_server.shards.records import Record, Report
from gradwire_server.shards.startup import TICK_SECONDS, Setup
from gradwire_udp import UdpDriver, new_event_loop, source_of
from gradwire_udp.process import end_with_parent

logger = logging.getLogger("gradwire.shard")


class ShardApplication:
    """The application of a shard's endpoint: it passes everything to process 0 over a channel."""

    def __init__(self, setup: Setup, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the shard has to end; with an exception after an error."""
        self._loop = loop
        self._stopping: asyncio.Task[None] | None = None
        self._flushing = False
        self._heard = True
        self._silent_ticks = 0
        self._silent_ticks_max = setup.silent_ticks_max
        figures = Figures()
        self.endpoint = Endpoint(
            setup.connection,
            random_bytes=os.urandom,
            connections_max=setup.connections_max,
            link_rate=setup.link_rate,
            shard=SessionIds(setup.index, setup.count),
            counters=figures.counters,
            connections_elsewhere=lambda: self._shard.elsewhere,
            credentials=_credentials(setup),
            source_of=source_of,
        )
        self._channel = Channel(socket.socket(fileno=setup.channel), loop, self._obey, self._on_end)
        self._shard = LocalShard(
            self.endpoint, figures, Arena(setup.arena), Arena(setup.arena_of_parent), self._channel
        )
        self._driver = UdpDriver(
            socket.socket(fileno=setup.datagrams), self.endpoint, self, loop, figures.sockets
        )
        self._post(Report.READY)
        self._ticking = loop.call_later(TICK_SECONDS, self._tick)

    def close(self) -> None:
        """Stop; posted records are still sent, unless the socket is full."""
        if self._stopping is not None:
            self._stopping.cancel()
        self._ticking.cancel()
        self._shard.flush()
        self._channel.close()
        self._driver.close()

    def log(self, level: int, name: str, line: str) -> None:
        """Have process 0 log a line, so that there is one log."""
        self._post(Report.LOG, level, name, line)

    def fail(self, error: BaseException) -> None:
        """End because of an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    # The interface of an application.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Report an event to process 0."""
        self._shard.handle_event(connection, event)
        self._flush_soon()

    def handle_timer(self, now: float) -> None:
        """Do nothing: a shard has no timers."""

    def next_timer(self) -> float | None:
        """Return None: a shard has no timers."""
        return None

    # Private.

    def _obey(self, records: Sequence[Record]) -> None:
        self._heard = True
        self._shard.handle(records, self._driver.now())
        if self._shard.stopping and self._stopping is None:
            self._stopping = self._loop.create_task(self._wait_quiet())
        self._flush_soon()
        self._driver.turn()

    async def _wait_quiet(self) -> None:
        # Process 0 has a deadline for the answer.
        await self._driver.wait_quiet(float("inf"))
        self._post(Report.QUIET)

    def _post(self, *record: object) -> None:
        self._channel.post(*record)
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send all posted records at the end of this round of the event loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._shard.flush()

    def _tick(self) -> None:
        # Counted in ticks of this process, not in seconds: when all processes were suspended for a
        # while, none has been silent.
        self._silent_ticks = 0 if self._heard else self._silent_ticks + 1
        self._heard = False
        if self._silent_ticks > self._silent_ticks_max:
            self.fail(TimeoutError(f"nothing heard from process {os.getppid()}, the master"))
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _on_end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _credentials(setup: Setup) -> Credentials | None:
    """Return the credentials of a setup; None without keys."""
    if setup.keyring is None:
        return None
    keyring = read_keyring(setup.keyring)
    return Credentials(keyring=keyring, unix_time_ns=time_ns, instance=setup.instance)


class ForwardingHandler(logging.Handler):
    """Forwards log records to process 0."""

    def __init__(self, application: ShardApplication) -> None:
        super().__init__()
        self._application = application

    def emit(self, record: logging.LogRecord) -> None:
        """Forward a record, with its traceback if it has one."""
        self._application.log(record.levelno, record.name, self.format(record))


async def serve(setup: Setup) -> None:
    """Serve connections until process 0 ends."""
    loop = asyncio.get_running_loop()
    application = ShardApplication(setup, loop)
    handler = ForwardingHandler(application)
    root = logging.getLogger("gradwire")
    root.setLevel(setup.log_level)
    root.addHandler(handler)

    def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        logger.critical("internal error", exc_info=error)
        application.fail(error)

    loop.set_exception_handler(on_exception)
    try:
        await application.ended
    finally:
        root.removeHandler(handler)
        application.close()


def main() -> None:
    """Run a shard."""
    setup = Setup.parse(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    end_with_parent(setup.parent, signal.SIGKILL)
    with asyncio.Runner(loop_factory=partial(new_event_loop, setup.loop)) as runner:
        runner.run(serve(setup))


if __name__ == "__main__":
    main()
