"""`NetworkThread`: the event loop that a session's network lives on.

The training thread never runs any of it and never waits for it, but in the calls that say so; it
hands over what it wants done with `call` and goes on.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from gradwire.errors import ConnectionLostError
from gradwire.membership import Membership
from gradwire.settings import Settings
from gradwire.worker import Worker
from gradwire_protocol import Endpoint
from gradwire_udp import SocketCounters, UdpDriver, new_event_loop, open_socket
from gradwire_udp.sockets import SocketAddress

logger = logging.getLogger("gradwire.network")

STOP_SECONDS_MAX = 2.0
"""How long the thread may take to say goodbye once it was told to stop."""


class NetworkThread:
    """One socket, one connection, one thread.

    Parameters
    ----------
    settings : Settings
    worker : Worker
    membership : Membership
        Told when something fails that nobody else would hear of.
    """

    def __init__(self, settings: Settings, worker: Worker, membership: Membership) -> None:
        self.worker = worker
        self.counters = SocketCounters()
        self._membership = membership
        self._endpoint = Endpoint(settings.connection, random_bytes=os.urandom)
        self._loop = new_event_loop(settings.loop)
        self._loop.set_exception_handler(self._on_exception)
        self._driver: UdpDriver | None = None
        self._stopping = False
        self._lingering: asyncio.Task[None] | None = None
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="gradwire-network", daemon=True)

    def start(self, family: socket.AddressFamily, address: SocketAddress) -> None:
        """Open a socket and dial the master.

        Raises
        ------
        OSError
            If there is no socket to be had.
        """
        anywhere = ("::", 0, 0, 0) if family == socket.AF_INET6 else ("0.0.0.0", 0)
        try:
            sock = open_socket(anywhere, family)
        except OSError:
            self._loop.close()
            raise
        self._thread.start()
        self._loop.call_soon_threadsafe(self._guard, self._dial, sock, address)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have `function` called on the thread, with `arguments` and the time; do not wait."""
        if not self._stopping:
            self._loop.call_soon_threadsafe(self._guard, self._call, function, arguments)

    def stop(self) -> None:
        """Send what is still to be said, and end the thread; waits for it, not for long."""
        if self._stopping or not self._thread.is_alive():
            return
        self._stopping = True
        self._loop.call_soon_threadsafe(self._guard, self._linger)
        self._stopped.wait(STOP_SECONDS_MAX)
        self._thread.join(STOP_SECONDS_MAX)

    # On the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
            self._stopped.set()

    def _dial(self, sock: socket.socket, address: SocketAddress) -> None:
        self._driver = UdpDriver(sock, self._endpoint, self.worker, self._loop, self.counters)
        self.worker.connect(self._endpoint, address, self._driver.now())
        self._driver.turn()

    def _call(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self._driver is not None:
            function(*arguments, now=self._driver.now())
            self._driver.turn()

    def _linger(self) -> None:
        """Repeat the CLOSE until the connection has forgotten us, then end."""
        self._lingering = self._loop.create_task(self._end())

    async def _end(self) -> None:
        if self._driver is not None:
            await self._driver.wait_quiet(STOP_SECONDS_MAX / 2)
            self._driver.close()
        self._loop.stop()

    def _guard(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self._fail(error)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Do what `_guard` does, for what the loop calls."""
        self._fail(context.get("exception") or RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        """Let nobody wait for a thread that has failed."""
        logger.error("the network thread failed", exc_info=error)
        lost = ConnectionLostError(f"the network thread failed: {error!r}; please report this")
        lost.__cause__ = error
        self._membership.on_closed(lost)
