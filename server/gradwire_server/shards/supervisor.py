"""`Supervisor`: the shards of a master, started, watched, started again, and ended.

A shard that ends takes its connections with it, and nothing else: run, replica and all other
workers are process 0's, or another shard's. So the master goes on. Its workers count as gone at
once, as if they had been disconnected, and the shard is started again at the same socket: it was
open all the time, so that the kernel's choice for all other packets stays what it was. Who was
connected there hears nothing more, gives up after its idle timeout, and can join again.
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
from gradwire_server.shards.spawning import how_it_ended, spawn
from gradwire_server.shards.startup import TICK_SECONDS, Setup
from gradwire_udp import Application

logger = logging.getLogger("gradwire.shards")

START_SECONDS_MAX: Final = 60.0
"""How long a shard may take to be ready: an interpreter with numpy, on a busy machine."""

RESTART_SECONDS: Final = 1.0
"""A shard that ends is started again after this time, so that one that cannot run keeps no core."""

END_SECONDS_MAX: Final = 2.0
"""How long a shard may take to end once its channel is closed."""

SILENT_SECONDS_MAX: Final = 30.0
"""A process that says nothing for this long, or the idle timeout where it is longer, hangs."""

REFRESH_SECONDS_MAX: Final = 0.5
"""A scrape waits no longer for the shards' figures; what they have told before counts then."""

POLL_SECONDS: Final = 0.02


@dataclass(slots=True)
class _Process:
    """A shard as long as its process lives."""

    index: int
    popen: subprocess.Popen[bytes]
    channel: Channel
    remote: RemoteShard
    asked: int = 0
    silent_ticks: int = 0
    limits: tuple[int, float | None] | None = None
    """What it was told last."""


class Supervisor:
    """All processes of a master but the one it is in; used among `gradwire_udp.Drivers`.

    Parameters
    ----------
    sockets : sequence of socket.socket
        Of the shards from 1 on, see `steering`; closed in the end.
    application : Application
        What hears of their connections.
    local : Figures
        What process 0 counts itself.
    total : Figures
        Where `refresh` puts what all of them have counted.
    link : LinkPacer
        Of process 0: it shares the machine's link with the shards.
    local_connections : callable
        Returns how many connections process 0 has.
    on_lost : callable
        Called when a shard has ended by itself.
    keyring : Keyring, optional
        Whom all of them let in; everybody, unsealed, unless given.
    instance : str
        Of the credentials.
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
        self._past = Figures()
        """What shards had counted that have ended."""
        self._burials: dict[asyncio.Task[None], _Process] = {}
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
        """By process id, in the shards' order: connections; a shard that restarts is left out."""
        living = sorted(self._processes.items())
        return {process.popen.pid: len(process.remote) for _, process in living}

    # Beginning and end.

    async def start(self) -> None:
        """Start all shards, and wait until they are ready.

        Raises
        ------
        GradwireError
            If one of them ends, or takes too long.
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
        """Let no new connections in."""
        if not self._stopping:
            self._stopping = True
            for process in self._living():
                process.remote.post(Command.STOP)
            self.turn()

    def set_keyring(self, keyring: Keyring) -> None:
        """Have all shards let in whom this keyring admits, and end all other connections."""
        assert self._keyring is not None, "a shard without keys cannot be given some"
        self._keyring = keyring
        for process in self._living():
            process.remote.post(Command.KEYS, *pack_keyring(keyring))
        self.turn()

    def turn(self) -> None:
        """Send what there is to say to shards."""
        if self._closed:
            return
        self._share()
        for process in self._living():
            process.remote.flush()
        self._parcels.let_go()

    async def wait_quiet(self, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until all connections are over, goodbyes included, at most `timeout` seconds."""
        self.stop()
        self._see_if_quiet()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._quiet), timeout)

    def close(self) -> None:
        """End all shards, whatever is still under way."""
        if self._closed:
            return
        self._closed = True
        if self._ticking is not None:
            self._ticking.cancel()
        for task in self._burials:
            task.cancel()
        for process in self._living():
            process.channel.close()
        deadline = monotonic() + END_SECONDS_MAX
        for process in (*self._living(), *self._burials.values()):
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
        """Have the total and the figures of connections tell of this moment."""
        for process in self._living():
            self._ask(process)
            process.remote.flush()
        answered = self._answered = self._answered or self._loop.create_future()
        self._see_if_answered()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(answered), REFRESH_SECONDS_MAX)
        living = (process.remote.figures for process in self._living())
        self._total.set_to_sum([self._local, self._past, *living])

    # Private.

    def _living(self) -> list[_Process]:
        return list(self._processes.values())

    def _start(self, index: int) -> None:
        popen, ours = self._spawn(index)
        channel = Channel(
            ours, self._loop, partial(self._heard, index), partial(self._ended, index)
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

    def _heard(self, index: int, records: Sequence[Record]) -> None:
        process = self._processes[index]
        process.remote.handle(records)
        self._turn_soon()
        if not self._started.done() and self._all_ready():
            self._started.set_result(None)
        self._see_if_quiet()
        self._see_if_answered()

    def _ended(self, index: int) -> None:
        process = self._processes.pop(index)
        self._past.add(process.remote.figures)
        number = len(process.remote)
        if self._started.done() and not self._closed:
            self._on_lost()
        process.remote.lose("the process of the master that it was connected to has ended")
        task = self._loop.create_task(self._bury(process, number))
        self._burials[task] = process
        task.add_done_callback(self._burials.pop)
        self._turn_soon()
        self._see_if_quiet()
        self._see_if_answered()

    async def _bury(self, process: _Process, connections: int) -> None:
        """Find out how a shard has ended, say so, and start it again."""
        popen, deadline = process.popen, monotonic() + END_SECONDS_MAX
        while popen.poll() is None:  # its channel is closed already, so this is soon
            if monotonic() >= deadline:
                popen.kill()
            await asyncio.sleep(POLL_SECONDS)
        how = how_it_ended(popen)
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
            except OSError as error:  # no memory, or too many processes: perhaps later
                logger.warning("process %d cannot be started: %s", process.index, error)
            else:
                return

    def _all_ready(self) -> bool:
        living = self._living()
        return len(living) == self._count - 1 and all(p.remote.ready for p in living)

    def _see_if_quiet(self) -> None:
        quiet = self._stopping and all(p.remote.quiet for p in self._living())
        if quiet and not self._quiet.done():
            self._quiet.set_result(None)

    def _ask(self, process: _Process) -> None:
        process.asked += 1
        process.remote.post(Command.ASK)

    def _see_if_answered(self) -> None:
        if self._answered is None:
            return
        if all(process.remote.answered >= process.asked for process in self._living()):
            self._answered.set_result(None)
            self._answered = None

    def _tick(self) -> None:
        """Ask how the shards are; end one that does not answer."""
        for process in self._living():
            # Counted in ticks of our own: what came while we were busy is heard in between.
            silent = process.remote.ready and process.remote.answered < process.asked
            process.silent_ticks = process.silent_ticks + 1 if silent else 0
            if process.silent_ticks > self._silent_ticks_max:
                logger.error("process %d of the master does not answer", process.index)
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

    # What all processes have together.

    def _refusal(self) -> str | None:
        """Return why a connection that has just come cannot stay; None if it can.

        Each shard knows how many the others have, and whether to let someone in at all, but not
        in the same instant.
        """
        if self._stopping:
            return "the master is stopping"
        others = self._connections() - 1
        if others >= self._config.connections_max:
            return f"no room: {others} connections are open"
        return None

    def _connections(self) -> int:
        return self._local_connections() + len(self)

    def _share(self) -> None:
        """Tell everyone what the others leave to it, where that has changed."""
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
        # One more for each, so that who comes next does not begin with nothing.
        return rate * (connections + 1) / (self._connections() + self._count)


def _log(index: int, level: int, name: str, line: str) -> None:
    logging.getLogger(name).log(level, "process %d: %s", index, line)
