"""`NetworkThread`: the event loop that a session's network lives on.

The training thread runs none of it, and waits for it only in `stop`. It passes calls to the thread
by `call`, and goes on.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Event, Thread
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from gradwire.errors import ConnectionLostError, GradwireError
from gradwire.replica.stats import Traffic
from gradwire.settings.settings import Settings
from gradwire.worker.dialing import SHARES, TCP, TRIES, UDP, Dial, Dialing, Way
from gradwire_protocol import Connection, ConnectionConfig, Credentials, Endpoint
from gradwire_udp import (
    Application,
    Drivers,
    SocketCounters,
    TcpCounters,
    TcpDriver,
    UdpDriver,
    new_event_loop,
    open_socket,
    resolve_all,
    show_addresses,
)
from gradwire_udp.sockets import SocketAddress, wildcard
from gradwire_udp.udp.refusals import LOOK_SECONDS, Refusals

logger = logging.getLogger("gradwire.network")

STOP_SECONDS_MAX = 2.0
"""How long the thread may take to say goodbye after it was told to stop."""


Destination: TypeAlias = tuple[socket.AddressFamily, SocketAddress]
"""One address of a master."""


class Dialler(Application, Protocol):
    """What speaks with a master: a `Worker`."""

    def dial(self, dialing: Dialing, now: float) -> None:
        """Dial the master by the first way of a dialing."""


AnyDialler = TypeVar("AnyDialler", bound=Dialler)


class NetworkThread(Generic[AnyDialler]):
    """One connection, what carries it, and the thread that it lives on.

    Parameters
    ----------
    on_closed : callable
        Told of the failures that would otherwise reach no other thread.
    credentials : Credentials, optional
        To dial with; without them packets are not sealed.
    """

    def __init__(
        self,
        settings: Settings,
        worker: AnyDialler,
        on_closed: Callable[[GradwireError | None], None],
        credentials: Credentials | None = None,
    ) -> None:
        self.worker = worker
        self._settings = settings
        self._credentials = credentials
        self._datagrams = SocketCounters()
        self._streams = TcpCounters()
        self._on_closed = on_closed
        self._loop = new_event_loop()
        self._loop.set_exception_handler(self._on_exception)
        self._drivers = Drivers(worker, self._loop)
        self._udp: dict[socket.AddressFamily, Endpoint] = {}
        """By the address family of its socket."""
        self._refusals = Refusals()
        self._tcp: tuple[TcpDriver, Endpoint] | None = None
        self._stopping = False
        self._lingering: asyncio.Task[None] | None = None
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="gradwire-network", daemon=True)

    def start(self, addresses: Sequence[Destination], *, start_timeout: float = 0.0) -> None:
        """Open sockets and dial the master.

        Parameters
        ----------
        addresses : sequence of (AddressFamily, SocketAddress)
            Of the master, in the order to try them in: what `resolve_all` returns.
        start_timeout : float
            Seconds to wait for a machine that is silent, and may come up.

        Raises
        ------
        OSError
            If this machine has no socket for any of them.
        """
        sockets: dict[socket.AddressFamily, socket.socket] = {}
        if UDP in TRIES[self._settings.transport]:
            try:
                sockets = _open_sockets(dict.fromkeys(family for family, _ in addresses))
            except OSError:
                self._loop.close()
                raise
        self._thread.start()
        self._loop.call_soon_threadsafe(self._guard, self._dial, sockets, addresses, start_timeout)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function` on the thread, with `arguments` and the time; do not wait for it."""
        if not self._stopping:
            self._loop.call_soon_threadsafe(self._guard, self._call, function, arguments)

    def stop(self) -> None:
        """Send what is still to be said, and end the thread; waits for that, with a limit."""
        if self._stopping or not self._thread.is_alive():
            return
        self._stopping = True
        self._loop.call_soon_threadsafe(self._guard, self._linger)
        self._stopped.wait(STOP_SECONDS_MAX)
        self._thread.join(STOP_SECONDS_MAX)

    @property
    def traffic(self) -> Traffic:
        """What was sent and received so far."""
        udp, tcp = self._datagrams, self._streams
        return Traffic(
            udp.datagrams_sent + tcp.packets_sent,
            udp.bytes_sent + tcp.bytes_sent,
            udp.datagrams_received + tcp.packets_received,
            udp.bytes_received + tcp.bytes_received,
        )

    # On the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
            self._stopped.set()

    def _dial(
        self,
        sockets: Mapping[socket.AddressFamily, socket.socket],
        addresses: Sequence[Destination],
        start_timeout: float,
    ) -> None:
        for family, sock in sockets.items():
            endpoint = self._udp[family] = self._endpoint(UDP)
            self._drivers.add(
                partial(UdpDriver, sock, endpoint, loop=self._loop, counters=self._datagrams)
            )
        dials: dict[str, list[Dial]] = {TCP: [partial(self._dial_tcp, *each) for each in addresses]}
        if sockets:
            dials[UDP] = [
                partial(self._udp[family].connect, address)
                for family, address in addresses
                if family in sockets
            ]
        ways = {
            name: Way(name, first, others=tuple(others)) for name, (first, *others) in dials.items()
        }
        tries = [ways[name] for name in TRIES[self._settings.transport]]
        dialing = Dialing(
            tries, show_addresses(addresses), self._settings.connect_timeout_seconds,
            start_timeout=start_timeout,
            accepts=lambda: self._tcp is not None and self._tcp[0].was_accepted,
            has_key=self._credentials is not None,
            reach=partial(self._reach, ways),
        )  # fmt: skip
        self.worker.dial(dialing, self._drivers.now())
        self._drivers.turn()
        if sockets:
            self._look_for_refusals()

    def _look_for_refusals(self) -> None:
        """End connections to ports where nothing listens; do so again and again."""
        if self._lingering is not None:
            return
        if self._refusals.look(
            chain.from_iterable(endpoint.connections() for endpoint in self._udp.values()),
            self._drivers.now(),
        ):
            self._drivers.turn()
        self._loop.call_later(LOOK_SECONDS, self._guard, self._look_for_refusals)

    def _reach(self, ways: Mapping[str, Way], name: str, master: str) -> Way:
        """Return the way to another master, whose address our own master has told us."""

        def dial(now: float) -> Connection:
            # Not before, because the name may lead elsewhere by now.
            try:
                addresses = resolve_all(master)
            except GradwireError as error:
                logger.warning("the other master at %s cannot be reached: %s", master, error)
                return ways[name].dial(now)
            if name == TCP:
                return self._dial_tcp(*addresses[0], now)
            for family, address in addresses:
                if family in self._udp:
                    return self._udp[family].connect(address, now)
            logger.warning("the other master at %s has no address of a family that we use", master)
            return ways[name].dial(now)

        return Way(name, dial, master)

    def _dial_tcp(
        self, family: socket.AddressFamily, address: SocketAddress, now: float
    ) -> Connection:
        if self._tcp is None:
            endpoint = self._endpoint(TCP)
            driver = self._drivers.add(
                lambda worker: TcpDriver(endpoint, worker, self._loop, self._streams)
            )
            self._tcp = driver, endpoint
        driver, endpoint = self._tcp
        connection = endpoint.connect(driver.dial(address, family), now)
        driver.turn()
        return connection

    def _endpoint(self, name: str) -> Endpoint:
        return Endpoint(self._config(name), random_bytes=os.urandom, credentials=self._credentials)

    def _config(self, name: str) -> ConnectionConfig:
        """Return the settings of connections over UDP or TCP."""
        config = self._settings.connection
        if self._settings.transport == "auto":
            timeout = SHARES[name] * config.connect_timeout_seconds
            config = replace(config, connect_timeout_seconds=timeout)
        return config.over_tcp if name == TCP else config

    def _call(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        function(*arguments, now=self._drivers.now())
        self._drivers.turn()

    def _linger(self) -> None:
        """Repeat the CLOSE until the connection has forgotten us, then end."""
        self._lingering = self._loop.create_task(self._end())

    async def _end(self) -> None:
        await self._drivers.wait_quiet(STOP_SECONDS_MAX / 2)
        self._drivers.close()
        self._refusals.close()
        self._loop.stop()

    def _guard(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self._fail(error)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Do what `_guard` does, for callbacks of the loop."""
        self._fail(context.get("exception") or RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        """End the waits for a thread that has failed."""
        logger.error("the network thread failed", exc_info=error)
        lost = ConnectionLostError(f"the network thread failed: {error!r}; please report this")
        lost.__cause__ = error
        self._on_closed(lost)


def _open_sockets(
    families: Iterable[socket.AddressFamily],
) -> dict[socket.AddressFamily, socket.socket]:
    """Return a UDP socket for each family that this machine has; `OSError` if it has none."""
    found: dict[socket.AddressFamily, socket.socket] = {}
    failure = OSError("the name has no address")
    for family in families:
        try:
            found[family] = open_socket(wildcard(family), family)
        except OSError as error:
            failure = error
    if not found:
        raise failure
    return found
