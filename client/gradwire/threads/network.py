"""`NetworkThread`: the event loop that a session's network lives on.

The training thread runs none of it, and waits for it only in `stop`. It passes calls to the thread
by `call`, and goes on.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Event, Thread
from typing import Any, Generic, Protocol, TypeVar

from gradwire.errors import ConnectionLostError, GradwireError
from gradwire.replica.stats import Traffic
from gradwire.settings.settings import Settings
from gradwire.threads.lookup import Lookup, Relookup
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
)
from gradwire_udp.sockets import Destination, SocketAddress, wildcard
from gradwire_udp.udp.refusals import LOOK_SECONDS, Refusals

logger = logging.getLogger("gradwire.network")

STOP_SECONDS_MAX = 2.0
"""How long the thread may take to say goodbye after it was told to stop."""


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
    lookup : Lookup, optional
        Finds the master again when it is dialled again.
    """

    def __init__(
        self,
        settings: Settings,
        worker: AnyDialler,
        on_closed: Callable[[GradwireError | None], None],
        credentials: Credentials | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        self.worker = worker
        self._settings = settings
        self._credentials = credentials
        self._lookup = lookup or Lookup(settings.master)
        self._relookup = Relookup(self._lookup, self._tell_where)
        self._destinations: Sequence[Destination] = ()
        """Where the master's name led at the last look-up."""
        self._version = 0
        """Counts look-ups that found others."""
        self._ways: dict[str, Way] = {}
        """To these, by ``"udp"`` and ``"tcp"``."""
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
        self._destinations = addresses
        self._add_sockets(sockets)
        self._ways = self._ways_to(addresses)
        tries = [self._ways[name] for name in TRIES[self._settings.transport]]
        dialing = Dialing(
            tries, self._lookup.shown(addresses), self._settings.connect_timeout_seconds,
            start_timeout=start_timeout,
            accepts=lambda: self._tcp is not None and self._tcp[0].was_accepted,
            has_key=self._credentials is not None,
            reach=self._reach, refresh=self._refresh,
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

    def _add_sockets(self, sockets: Mapping[socket.AddressFamily, socket.socket]) -> None:
        for family, sock in sockets.items():
            endpoint = self._udp[family] = self._endpoint(UDP)
            self._drivers.add(
                partial(UdpDriver, sock, endpoint, loop=self._loop, counters=self._datagrams)
            )

    def _ways_to(self, addresses: Sequence[Destination]) -> dict[str, Way]:
        """Return the ways to a master, by UDP where there is a socket for it, and by TCP."""
        dials: dict[str, list[Dial]] = {
            TCP: [partial(self._dial_tcp, *each) for each in addresses],
            UDP: [
                partial(self._udp[family].connect, address)
                for family, address in addresses
                if family in self._udp
            ],
        }
        return {
            name: Way(name, first, others=tuple(others), version=self._version)
            for name, (first, *others) in ((name, each) for name, each in dials.items() if each)
        }

    def _refresh(self, way: Way) -> Way:
        """Return a way as it leads by now, and have the name looked up for the next try."""
        self._relookup.request()
        if way.master or way.version == self._version:
            return way
        return self._ways.get(way.name, way)

    def _tell_where(self, destinations: Sequence[Destination]) -> None:
        """Hand what a look-up has found to the network thread; called on another one."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._guard, self._move, destinations)

    def _move(self, destinations: Sequence[Destination]) -> None:
        """Dial these addresses from the next try on."""
        # As sets: DNS may give them in another order each time.
        if self._lingering is not None or set(destinations) == set(self._destinations):
            return
        logger.info("the master's name leads to %s now", self._lookup.shown(destinations))
        if UDP in TRIES[self._settings.transport]:
            families = dict.fromkeys(family for family, _ in destinations)
            with suppress(OSError):  # this machine may lack the family, and have TCP
                self._add_sockets(_open_sockets(families.keys() - self._udp.keys()))
        self._destinations = destinations
        self._version += 1
        self._ways |= self._ways_to(destinations)

    def _reach(self, name: str, master: str) -> Way:
        """Return the way to another master, whose address our own master has told us."""

        def dial(now: float) -> Connection:
            # Not before, because the name may lead elsewhere by now.
            try:
                addresses = resolve_all(master)
            except GradwireError as error:
                logger.warning("the other master at %s cannot be reached: %s", master, error)
                return self._ways[name].dial(now)
            if name == TCP:
                return self._dial_tcp(*addresses[0], now)
            for family, address in addresses:
                if family in self._udp:
                    return self._udp[family].connect(address, now)
            logger.warning("the other master at %s has no address of a family that we use", master)
            return self._ways[name].dial(now)

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
