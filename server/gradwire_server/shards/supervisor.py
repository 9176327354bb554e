"""`Supervisor`: starts, watches, restarts and ends the shards of a master.

When a shard ends, its connections are lost, and nothing else: run, replica and all other workers
belong to process 0, or to another shard. So the master goes on. It removes the shard's workers at
once, as if they had been disconnected, and restarts the shard with the same socket. The socket
stays open meanwhile, so that the kernel steers all other packets as before. The lost workers hear
nothing more, give up after their idle timeout, and can join again.
"""

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from time import monotonic
from typing import Final

from gradwire_protocol import GradwireError
from gradwire_protocol.connection.fair_queue import LinkPacer
from gradwire_protocol.crypto.keys import Keyring
from gradwire_server.config import MasterConfig
from gradwire_server.shards.arena import Arena
from gradwire_server.shards.channel import Channel
from gradwire_server.shards.figures import Figures
from gradwire_server.shards.keys import new_keyring_file, pack_keyring
from gradwire_server.shards.records import Command, Record
from gradwire_server.shards.remote import Parcels, RemoteShard
from gradwire_server.shards.spawning import describe_exit, spawn
from gradwire_server.shards.startup import TICK_SECONDS, Setup
from gradwire_udp import Application

logger = logging.getLogger("gradwire.shards")

START_SECONDS_MAX: Final = 60.0
"""How long a shard may take to be ready: an interpreter loads numpy, on a busy machine."""

RESTART_SECONDS: Final = 1.0
"""Pause before a shard is restarted, so that one that always fails does not use up a core."""

END_SECONDS_MAX: Final = 2.0
"""How long a shard may take to end once its channel is closed."""

SILENT_SECONDS_MAX: Final = 30.0
"""A process that is silent for this long, or for the idle timeout if that is longer, hangs."""

REFRESH_SECONDS_MAX: Final = 0.5
"""How long a scrape waits for the shards' figures; then it uses the previous ones."""

POLL_SECONDS: Final = 0.02


@dataclass(slots=True)
class _Process:
    """A shard, from the start to the end of its process."""

    index: int
    popen: subprocess.Popen[bytes]
    channel: Channel
    remote: RemoteShard
    asked: int = 0
    """Number of ASK sent."""
    silent_ticks: int = 0
    limits: tuple[int, float | None] | None = None
    """The last LIMITS sent."""


class Supervisor:
    """All processes of a master but process 0; one of `gradwire_udp.Drivers`.

    Parameters
    ----------
    sockets : sequence of socket.socket
        Of shard 1, 2 and so on, see `steering`; `close` closes them.
    local : Figures
        Counters of process 0.
    total : Figures
        `refresh` stores the sums over all processes here.
    link : LinkPacer
        Of process 0, which shares the machine's link with the shards.
    local_connections : callable
        Returns the number of connections of process 0.
    on_lost : callable
        Called when a shard has ended unasked.
    keyring : Keyring, optional
        Without it, everyone is let in, and packets are not sealed.
    """

    def __init__(
        self,
        config: MasterConfig,
        sockets: Sequence[socket.socket],
        application: Application,
        loop: asyncio.AbstractEventLoop,
        *,
        local: Figures,
        total: Figures,
        link: LinkPacer,
        local_connections: Callable[[], int],
        on_lost: Callable[[], None],
        keyring: Keyring | None = None,
        instance: str = "",
    ) -> None:
        self._config = config
        self._keyring = keyring
        self._instance = instance
        self._application = application
        self._loop = loop
        self._local = local
        self._total = total
        self._link = link
        self._local_connections = local_connections
        self._on_lost = on_lost
        self._count = len(sockets) + 1
        self._sockets = list(sockets)
        self._files = [Arena.new_file(f"gradwire-{i}") for i in range(self._count)]
        self._arenas = [Arena(descriptor) for descriptor in self._files]
        self._parcels = Parcels(self._arenas[0])
        self._processes: dict[int, _Process] = {}
        self._ended_figures = Figures()
        """Counters of shards that have ended."""
        self._reaping: dict[asyncio.Task[None], _Process] = {}
        self._turning = False
        self._stopping = False
        self._closed = False
        self._started: asyncio.Future[None] = loop.create_future()
        self._quiet: asyncio.Future[None] = loop.create_future()
        self._answered: asyncio.Future[None] | None = None
        self._ticking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of connections in all shards."""
        return sum(len(process.remote) for process in self._processes.values())

    @property
    def connections_by_process(self) -> dict[int, int]:
        """Connections by process id, in the order of shards, without one that is restarting."""
        living = sorted(self._processes.items())
        return {process.popen.pid: len(process.remote) for _, process in living}

    # Beginning and end.

    async def start(self) -> None:
        """Start all shards, and wait until they are ready.

        Raises `GradwireError` if one of them ends, or takes too long.
        """
        for index in range(1, self._count):
            self._start(index)
        self._tick()
        try:
            await asyncio.wait_for(asyncio.shield(self._started), START_SECONDS_MAX)
        except TimeoutError:
            raise GradwireError(
                f"processes={self._count}: not all of them were ready in {START_SECONDS_MAX:g} s"
            ) from None

    def stop(self) -> None:
        """Accept no new connections."""
        if not self._stopping:
            self._stopping = True
            for process in self._living():
                process.remote.post(Command.STOP)
            self.turn()

    def set_keyring(self, keyring: Keyring) -> None:
        """Have all shards admit only workers of this keyring, and close other connections."""
        assert self._keyring is not None, "a shard without keys cannot be given some"
        self._keyring = keyring
        for process in self._living():
            process.remote.post(Command.KEYS, *pack_keyring(keyring))
        self.turn()

    def turn(self) -> None:
        """Send all posted commands to the shards."""
        if self._closed:
            return
        self._post_limits()
        for process in self._living():
            process.remote.flush()
        self._parcels.release()

    async def wait_quiet(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until all connections are closed, at most `timeout` seconds."""
        self.stop()
        self._check_quiet()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._quiet), timeout)

    def close(self) -> None:
        """End all shards, even while messages are under way."""
        if self._closed:
            return
        self._closed = True
        if self._ticking is not None:
            self._ticking.cancel()
        for task in self._reaping:
            task.cancel()
        for process in self._living():
            process.channel.close()
        deadline = monotonic() + END_SECONDS_MAX
        for process in (*self._living(), *self._reaping.values()):
            try:
                process.popen.wait(max(deadline - monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        for sock in self._sockets:
            sock.close()
        for descriptor in self._files:
            os.close(descriptor)

    # While they live.

    async def refresh(self) -> None:
        """Bring the total and the figures of connections up to date."""
        for process in self._living():
            self._ask(process)
            process.remote.flush()
        answered = self._answered = self._answered or self._loop.create_future()
        self._check_answered()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(answered), REFRESH_SECONDS_MAX)
        living = (process.remote.figures for process in self._living())
        self._total.set_to_sum([self._local, self._ended_figures, *living])

    # Private.

    def _living(self) -> list[_Process]:
        return list(self._processes.values())

    def _start(self, index: int) -> None:
        popen, ours = self._spawn(index)
        channel = Channel(
            ours, self._loop, partial(self._on_records, index), partial(self._on_end, index)
        )
        remote = RemoteShard(
            self._parcels,
            self._arenas[index],
            channel,
            lambda connection, event: self._application.handle_event(
                connection, event, monotonic()
            ),
            self._refusal,
        )
        remote.log = partial(_log, index)
        self._processes[index] = _Process(index, popen, channel, remote)

    def _spawn(self, index: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start the process of a shard; return it and our end of its channel."""
        keyring = None if self._keyring is None else new_keyring_file(self._keyring)
        try:
            ours, theirs = socket.socketpair()
            setup = Setup(
                index=index,
                count=self._count,
                parent=os.getpid(),
                loop="uvloop" if type(self._loop).__module__.startswith("uvloop") else "asyncio",
                log_level=logging.getLogger("gradwire").getEffectiveLevel(),
                connection=self._config.connection,
                connections_max=self._config.connections_max,
                link_rate=self._share_of_link(0),
                keyring=keyring,
                instance=self._instance,
                silent_ticks_max=self._silent_ticks_max,
                datagrams=self._sockets[index - 1].fileno(),
                channel=theirs.fileno(),
                arena=self._files[index],
                arena_of_parent=self._files[0],
            )
            return spawn(setup, ours, theirs), ours
        finally:
            if keyring is not None:
                os.close(keyring)

    def _on_records(self, index: int, records: Sequence[Record]) -> None:
        process = self._processes[index]
        process.remote.handle(records)
        self._turn_soon()
        if not self._started.done() and self._all_ready():
            self._started.set_result(None)
        self._check_quiet()
        self._check_answered()

    def _on_end(self, index: int) -> None:
        process = self._processes.pop(index)
        self._ended_figures.add(process.remote.figures)
        number = len(process.remote)
        if self._started.done() and not self._closed:
            self._on_lost()
        process.remote.lose("the process of the master that it was connected to has ended")
        task = self._loop.create_task(self._reap(process, number))
        self._reaping[task] = process
        task.add_done_callback(self._reaping.pop)
        self._turn_soon()
        self._check_quiet()
        self._check_answered()

    async def _reap(self, process: _Process, connections: int) -> None:
        """Wait for a shard's process to end, log how, and restart it."""
        popen, deadline = process.popen, monotonic() + END_SECONDS_MAX
        while popen.poll() is None:  # its channel is closed already, so this takes no time
            if monotonic() >= deadline:
                popen.kill()
            await asyncio.sleep(POLL_SECONDS)
        how = describe_exit(popen)
        if not self._started.done():
            self._started.set_exception(
                GradwireError(f"process {process.index} of the master {how} before it was ready")
            )
            return
        logger.error(
            "process %d of the master, pid %d, %s: %d connections are lost; it is started again",
            process.index, popen.pid, how, connections,
        )  # fmt: skip
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            if self._stopping:
                return
            try:
                self._start(process.index)
            except OSError as error:  # no memory, or too many processes: tried again
                logger.warning("process %d of the master cannot be started: %s",
                               process.index, error)  # fmt: skip
            else:
                return

    def _all_ready(self) -> bool:
        living = self._living()
        return len(living) == self._count - 1 and all(p.remote.ready for p in living)

    def _check_quiet(self) -> None:
        quiet = self._stopping and all(p.remote.quiet for p in self._living())
        if quiet and not self._quiet.done():
            self._quiet.set_result(None)

    def _ask(self, process: _Process) -> None:
        process.asked += 1
        process.remote.post(Command.ASK)

    def _check_answered(self) -> None:
        if self._answered is None:
            return
        if all(process.remote.answered >= process.asked for process in self._living()):
            self._answered.set_result(None)
            self._answered = None

    def _tick(self) -> None:
        """Ask all shards for figures; kill a shard that has not answered for too long."""
        for process in self._living():
            # Counted in ticks, not in seconds: answers that came while this process was busy are
            # read between two ticks.
            silent = process.remote.ready and process.remote.answered < process.asked
            process.silent_ticks = process.silent_ticks + 1 if silent else 0
            if process.silent_ticks > self._silent_ticks_max:
                logger.error("process %d of the master does not answer: it is killed and restarted",
                             process.index)  # fmt: skip
                process.popen.kill()
            self._ask(process)
        self.turn()
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    @property
    def _silent_ticks_max(self) -> int:
        seconds = max(SILENT_SECONDS_MAX, self._config.idle_timeout_seconds)
        return ceil(seconds / TICK_SECONDS)

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn_now)

    def _turn_now(self) -> None:
        self._turning = False
        self.turn()

    # Limits of all processes together.

    def _refusal(self) -> str | None:
        """Return why a new connection cannot stay; None if it can.

        Each shard checks this, too, but may not have heard of the latest connections elsewhere.
        """
        if self._stopping:
            return "the master is stopping"
        others = self._connections() - 1
        if others >= self._config.connections_max:
            return f"no room: {others} connections are open"
        return None

    def _connections(self) -> int:
        return self._local_connections() + len(self)

    def _post_limits(self) -> None:
        """Send each shard its limits, if they have changed, and set that of this process."""
        total = self._connections()
        for process in self._living():
            own = len(process.remote)
            limits = total - own, self._share_of_link(own)
            if limits != process.limits:
                process.limits = limits
                process.remote.post(Command.LIMITS, *limits)
        share = self._share_of_link(self._local_connections())
        if share is not None:
            self._link.rate = share

    def _share_of_link(self, connections: int) -> float | None:
        """Return the part of the link's rate for a process with so many connections."""
        rate = self._config.link_bytes_per_second
        if rate is None:
            return None
        # One more for each process, so that its next connection does not start without a share.
        return rate * (connections + 1) / (self._connections() + self._count)


def _log(index: int, level: int, name: str, line: str) -> None:
    logging.getLogger(name).log(level, "process %d: %s", index, line)
