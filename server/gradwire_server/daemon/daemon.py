"""The daemon: a master with sockets, a clock, signals and an HTTP server."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from gradwire_codecs import warm_up
from gradwire_protocol import GradwireError, Keyring, UsageError
from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.checkpoints.writer import ThreadWriter
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.announcer import Announcer, Announcing
from gradwire_server.daemon.collector import SocketsCollector
from gradwire_server.daemon.key_source import KeySource
from gradwire_server.daemon.listening import (
    LOOK_SECONDS,
    Listening,
    RefusedHandshakes,
    Transport,
    bind_error,
)
from gradwire_server.http.access import Access
from gradwire_server.http.api import api_routes
from gradwire_server.http.assets import assets, page_routes
from gradwire_server.http.documents import Documents
from gradwire_server.http.orders import orders_route
from gradwire_server.http.server import HttpServer, is_of_aiohttp
from gradwire_server.http.streams import Streams
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.background import Background
from gradwire_server.runs.collector import RunsCollector
from gradwire_server.runs.figures import Figures
from gradwire_server.runs.orders import Order
from gradwire_server.runs.runs import Runs
from gradwire_server.standby.standby import Standby
from gradwire_server.state.run import Run
from gradwire_server.updates.decoding import ThreadDecoder
from gradwire_udp import Drivers, resolve, show_address, split_address
from gradwire_udp.udp.refusals import LOOK_SECONDS as REFUSALS_SECONDS
from gradwire_udp.udp.refusals import Refusals

if TYPE_CHECKING:
    from gradwire_server.daemon.event_files import EventFiles  # it needs TensorBoard

logger = logging.getLogger("gradwire.daemon")

HTTP_PORT: Final = 40124
STOP_SECONDS_MAX: Final = 2.0
"""How long closing all connections may take: some probe timeouts to the farthest worker."""

STOP_WRITING_SECONDS_MAX: Final = 60.0
"""How long the last checkpoint may take: 6 GB at 100 MB/s. systemd kills a service after 90 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a daemon listens, and which address it announces."""

    listen: str
    """``host:port`` for workers; port 0 takes a free one."""
    http: str | None
    """``host:port`` for HTTP; None for no HTTP."""
    advertise: str | None = None
    """``host`` or ``host:port`` to announce, where it is not that of `listen`."""
    transport: Transport = "auto"


class Daemon:
    """A master that runs until it is told to stop.

    Parameters
    ----------
    access : Access, optional
        Decides which HTTP clients may read, and which may give orders.
    keys : KeySource, optional
        Without it the master has no keys.
    resumed : sequence of Run
        Runs that go on from checkpoints.
    folder : CheckpointFolder, optional
        Without it no checkpoints are written.
    event_files : EventFiles, optional
        Without it nothing is written for TensorBoard.
    announcing : Announcing, optional
        Without it the master is announced nowhere but on stdout.
    """

    def __init__(
        self,
        config: MasterConfig,
        addresses: Addresses,
        access: Access | None = None,
        keys: KeySource | None = None,
        *,
        resumed: Sequence[Run] = (),
        folder: CheckpointFolder | None = None,
        event_files: "EventFiles | None" = None,
        announcing: Announcing | None = None,
    ) -> None:
        self._addresses = addresses
        self._announcing = announcing
        self._announcer: Announcer | None = None
        self._event_files = event_files
        self._access = access or Access()
        self._metrics = ServerMetrics()
        self._background = _Threads(folder, self._call_soon)
        self._written = asyncio.Event()
        self._runs = Runs(
            config,
            self._metrics,
            self._background,
            resumed=resumed,
            on_denied=self._deny,
            on_drained=self._stop,
            on_failed=self._note_failed,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drivers: Drivers | None = None
        self._keys = keys or KeySource()
        self._keyring = self._keys.read()
        self._denied: frozenset[str] = frozenset()
        self._listening = Listening(
            config,
            addresses.transport,
            self._keyring,
            insecure=self._keys.insecure,
        )
        self._application: Runs | Standby = self._runs
        if config.standby_of is not None:
            dial = partial(self._listening.dial, config.standby_of)
            self._application = Standby(self._runs, dial, monotonic())
        self._stopping = asyncio.Event()
        self._signalled = False
        self._hurried = False
        """Whether a second signal came: then nothing is waited for."""
        self._reason = ""
        self._failure: BaseException | None = None
        self._refusal: GradwireError | None = None
        """Why it cannot be announced where it should be."""

    async def run(self) -> None:
        """Listen, announce the address on stdout, and serve until a signal comes.

        Raises
        ------
        AddressInUseError
            If one of the addresses is taken.
        UsageError, UnreachableError
            If one of them is not an address of this machine.
        """
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        warm_up()  # else the first update would wait for the compiler
        listening = self._listening
        drivers = self._drivers = listening.open(self._addresses.listen, self._application, loop)
        self._register_collectors()
        figures = Figures(self._runs, self._traffic, drivers.now())
        documents = Documents(self._runs, figures, lambda: listening.connections, drivers.now)
        streams = Streams(documents)
        http = self._http(documents, streams)
        refusals: asyncio.Task[None] | None = None
        try:
            is_local = ip_address(listening.address[0]).is_loopback
            self._access.has_keys = self._keys.key_file is not None or not is_local
            http_address = await self._start_http(http)
            self._handle_signals(loop)
            if self._keyring is not None:
                self._runs.set_keyring(self._keyring, drivers.now())
            self._runs.begin(drivers.now())
            drivers.turn()  # a standby dials its primary at once, not when somebody calls
            self._announce(http_address)
            if isinstance(self._application, Standby):
                refusals = asyncio.create_task(self._look_for_refusals(drivers))
            await self._serve(drivers, figures)
            await self._close_connections(drivers)
            await self._close_files(drivers.now())
        finally:
            if refusals is not None:
                refusals.cancel()
            streams.close()
            await http.close()
            self._runs.close()
            drivers.close()
        if self._failure is not None:
            raise self._failure
        if self._refusal is not None:
            raise self._refusal

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)
        if self._keys.key_file is not None:
            loop.add_signal_handler(signal.SIGHUP, self._read_keys_again)

    def _traffic(self) -> tuple[int, int]:
        """Return how many bytes were received and sent."""
        udp, tcp = self._listening.datagrams, self._listening.streams
        return udp.bytes_received + tcp.bytes_received, udp.bytes_sent + tcp.bytes_sent

    async def _serve(self, drivers: Drivers, figures: Figures) -> None:
        """Look about once a second how things are, until the daemon is to stop."""
        refused = RefusedHandshakes(self._listening.counters, has_keys=self._keyring is not None)
        while not await self._stops_within(LOOK_SECONDS):
            refused.look(monotonic())
            figures.sample(drivers.now())
            if self._announcer is not None:
                self._announcer.look()
            if self._event_files is not None:
                self._event_files.look(self._runs.masters, drivers.now())
        refused.look(monotonic())
        logger.info("stopping: %s", self._reason)

    async def _stops_within(self, seconds: float) -> bool:
        """Wait until the daemon is to stop, or for so long; return whether it is to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _look_for_refusals(self, drivers: Drivers) -> None:
        """End a standby's connection to a primary that is gone."""
        refusals, standby = Refusals(), self._application
        assert isinstance(standby, Standby)
        try:
            while True:
                await asyncio.sleep(REFUSALS_SECONDS)
                up = standby.up
                if refusals.look([] if up is None else [up], drivers.now()):
                    drivers.turn()
        finally:
            refusals.close()

    def _http(self, documents: Documents, streams: Streams) -> HttpServer:
        self._access.public = assets().keys()
        routes = [
            *page_routes(),
            orders_route(self._access, self._order),
            streams.route,
            *api_routes(documents.handlers, lambda: documents.runs, self._access),
        ]
        return HttpServer(self._metrics, documents.overview, access=self._access, routes=routes)

    async def _start_http(self, http: HttpServer) -> str | None:
        if self._addresses.http is None:
            return None
        host, _ = split_address(self._addresses.http, HTTP_PORT)
        family, address = resolve(self._addresses.http, HTTP_PORT)
        try:
            await http.start(address, family)
        except OSError as error:
            raise bind_error(error, "HTTP", self._addresses.http, "--http") from None
        shown = show_address((host, http.port))
        if self._access.lacks_token:
            logger.warning(
                "HTTP at %s has no token, so all it serves is /healthz: pass --http-token-file "
                "FILE or --http-operator-token-file FILE, or listen on loopback",
                shown,
            )
        return shown

    @property
    def _advertised(self) -> tuple[str, int]:
        """Host and port that workers should use."""
        bound, port = self._listening.address[:2]
        advertise = self._addresses.advertise
        return (bound, port) if advertise is None else split_address(advertise, port)

    def _begin_announcer(self) -> None:
        if self._announcing is None:
            return
        self._announcer = Announcer(
            self._announcing,
            show_address(self._advertised),
            self._runs,
            self._metrics.announced,
            lambda error: self._call_soon(partial(self._end_with, error)),
        )
        self._announcer.begin()

    def _end_with(self, error: GradwireError, now: float) -> None:
        self._refusal = error
        self._stop(str(error))

    async def _close_files(self, now: float) -> None:
        await self._wait_for_disk()
        if self._event_files is not None:
            self._event_files.close(self._runs.masters, now)

    def _register_collectors(self) -> None:
        listening = self._listening
        sockets = listening.counters, listening.datagrams, listening.streams
        self._metrics.registry.register(SocketsCollector(self._runs.first.terms, *sockets))
        self._metrics.registry.register(RunsCollector(self._runs))

    def _announce(self, http_address: str | None) -> None:
        """Announce the address for workers: on stdout in a line of JSON, and by ``--announce``."""
        bound = self._listening.address[0]
        host, port = self._advertised
        announcement = {
            "master": show_address((host, port)),
            "http": http_address,
            "pid": os.getpid(),
            "version": version("gradwire"),
        }
        sys.stdout.write(json.dumps(announcement) + "\n")
        sys.stdout.flush()
        reachable = host if host not in ("0.0.0.0", "::") else "THIS-HOST"
        logger.info("workers join with GRADWIRE_MASTER=%s", show_address((reachable, port)))
        self._begin_announcer()
        if self._keys.key_file is None and not ip_address(bound).is_loopback:
            logger.warning(
                "INSECURE: packets are neither sealed nor signed, and anyone who can reach port %d "
                "can join, read and change the model. Instead of --insecure, make a key with "
                "`gradwire keygen run.key` and pass --key-file run.key",
                port,
            )

    def _order(self, who: str, order: Order) -> str:
        """Carry out an order, and send what follows from it."""
        assert self._drivers is not None
        try:
            return self._runs.order(who, order, self._drivers.now())
        except GradwireError:
            raise
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._drivers.turn()

    def _call_soon(self, handle: Callable[[float], None]) -> None:
        """Call back on the event loop, with the time; called on other threads."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._hand_on, handle)

    def _hand_on(self, handle: Callable[[float], None]) -> None:
        assert self._drivers is not None
        handle(self._drivers.now())
        self._drivers.turn()
        self._written.set()

    def _note_failed(self, run: str, error: Exception) -> None:
        logger.critical(
            "internal error: the workers of run %r are disconnected, and may come back; the other "
            "runs go on",
            run,
            exc_info=error,
        )

    def _read_keys_again(self) -> None:
        """Read the keys and denied names again; where that fails, keep those in use."""
        assert self._drivers is not None
        try:
            self._keyring = self._keys.read()
        except GradwireError as error:
            logger.error("the keys stay as they were: %s", error)  # noqa: TRY400  # it says it all
            return
        self._set_keyring()
        self._drivers.turn()

    def _deny(self, names: frozenset[str]) -> None:
        """Set the names that operators have denied; the next turn closes their connections."""
        if self._keyring is None:
            raise UsageError("this master has no keys, so there are no names in them to deny")
        self._denied = names
        self._set_keyring()

    def _set_keyring(self) -> None:
        assert self._keyring is not None, (
            "only a master with keys reads them again or has operators"
        )
        assert self._drivers is not None
        denied = self._keyring.denied | self._denied
        keyring = Keyring(self._keyring.run_keys, denied)
        self._listening.set_keyring(keyring, self._drivers.now())
        self._runs.set_keyring(keyring, self._drivers.now())

    def _on_signal(self, name: str) -> None:
        """Drain the master, and then stop; stop at once on the second signal."""
        reason = f"the master was stopped by {name}"
        if self._signalled:
            self._hurried = True
            self._written.set()
            self._stop(reason)
            return
        assert self._drivers is not None
        self._signalled = True
        logger.info("draining: %s", reason)
        self._runs.drain(reason, self._drivers.now())
        self._drivers.turn()

    def _stop(self, reason: str) -> None:
        self._reason = reason
        self._stopping.set()

    async def _close_connections(self, drivers: Drivers) -> None:
        """Close all connections with the reason, and wait until the peers have heard it."""
        if self._announcer is not None:
            await asyncio.to_thread(self._announcer.close)
        self._listening.stop_accepting()
        self._application.stop(self._reason, drivers.now(), broken=self._failure is not None)
        drivers.turn()
        await drivers.wait_quiet(STOP_SECONDS_MAX)

    async def _wait_for_disk(self) -> None:
        """Wait until the last checkpoint is written, at most `STOP_WRITING_SECONDS_MAX`."""
        try:
            async with asyncio.timeout(STOP_WRITING_SECONDS_MAX):
                while self._runs.writes:
                    if self._hurried or self._failure is not None:
                        return
                    self._written.clear()
                    await self._written.wait()
        except TimeoutError:
            logger.error(  # noqa: TRY400  # it says it all
                "no checkpoint of the last state: the disk took longer than %g s",
                STOP_WRITING_SECONDS_MAX,
            )

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the daemon when a callback fails: its state may be wrong from then on."""
        error = context.get("exception")
        if is_of_aiohttp(error):
            # Only a connection of it has failed. Not with its message, which could quote a token.
            logger.error("an HTTP connection failed: %s", type(error).__name__)
            return
        self._fail(error or RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        logger.critical("internal error", exc_info=error)
        self._stop("the master was stopped by an internal error")


class _Threads(Background):
    """Threads that decode updates and write checkpoints for the masters of a daemon."""

    def __init__(
        self,
        folder: CheckpointFolder | None,
        call_soon: Callable[[Callable[[float], None]], None],
    ) -> None:
        self._folder = folder
        self._call_soon = call_soon

    def decoder(self, on_ready: Callable[[float], None]) -> ThreadDecoder:
        """Return a decoder with a thread of its own."""
        return ThreadDecoder(partial(self._call_soon, on_ready))

    def writer(self, on_ready: Callable[[float], None]) -> ThreadWriter | None:
        """Return a writer; None without a folder."""
        if self._folder is None:
            return None
        return ThreadWriter(self._folder, partial(self._call_soon, on_ready))
