"""The daemon: a master with a socket, a clock, signals and an HTTP side."""

import asyncio
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final

from gradwire_codecs import warm_up
from gradwire_server.config import MasterConfig
from gradwire_server.decoding import ThreadDecoder
from gradwire_server.http import HttpServer
from gradwire_server.listening import Listening, Transport, explained
from gradwire_server.master import Master
from gradwire_server.metrics import MasterCollector, ServerMetrics
from gradwire_udp import Drivers, show_address, split_address

logger = logging.getLogger("gradwire.daemon")

HTTP_PORT: Final = 40124
STOP_SECONDS_MAX: Final = 2.0
"""How long goodbyes may take: some probe timeouts to the farthest worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a daemon listens, and where it says it does."""

    listen: str
    """``host:port`` for workers; port 0 takes a free one."""
    http: str | None
    """``host:port`` for HTTP; None for no HTTP at all."""
    advertise: str | None = None
    """``host`` or ``host:port`` that workers should use, where it differs."""
    transport: Transport = "auto"
    """What it listens to there: UDP, TCP, or both."""


class Daemon:
    """A master that runs until it is told to stop.

    Parameters
    ----------
    config : MasterConfig
    addresses : Addresses
    """

    def __init__(self, config: MasterConfig, addresses: Addresses) -> None:
        self._addresses = addresses
        self._metrics = ServerMetrics()
        self._decoder = ThreadDecoder(self._on_decoded)
        self._master = Master(config, self._metrics, self._decoder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drivers: Drivers | None = None
        self._listening = Listening(config, addresses.transport)
        self._stopping = asyncio.Event()
        self._reason = ""
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Listen, announce it on stdout, and serve until a signal comes.

        Raises
        ------
        AddressInUseError
            If one of the addresses is taken.
        UsageError, UnreachableError
            If one of them is none of this machine's.
        """
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        warm_up()  # else the first update would have to wait for the compiler
        listening = self._listening
        drivers = self._drivers = listening.open(
            self._addresses.listen, self._master, loop, self._metrics.processes_lost.inc
        )
        figures = listening.figures
        self._metrics.registry.register(
            MasterCollector(self._master, figures.counters, figures.sockets, listening.streams)
        )
        http = HttpServer(self._metrics.registry, self._status, listening.refresh)
        try:
            await listening.start()
            http_address = await self._start_http(http)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
            self._announce(http_address)
            await self._stopping.wait()
            logger.info("stopping: %s", self._reason)
            await self._say_goodbye(drivers)
        finally:
            await http.close()
            self._decoder.close()
            drivers.close()
        if self._failure is not None:
            raise self._failure

    async def _start_http(self, http: HttpServer) -> str | None:
        if self._addresses.http is None:
            return None
        host, port = split_address(self._addresses.http, HTTP_PORT)
        try:
            await http.start(host, port)
        except OSError as error:
            raise explained(error, "HTTP", self._addresses.http, "--http") from None
        return show_address((host, http.port))

    def _announce(self, http_address: str | None) -> None:
        """Say on stdout, in one line that a program can read, where workers find us."""
        bound, port = self._listening.address[:2]
        host = bound
        advertise = self._addresses.advertise
        if advertise is not None:
            host, port = split_address(advertise, port)
        master = show_address((host, port))
        announcement = {
            "master": master,
            "http": http_address,
            "pid": os.getpid(),
            "version": version("gradwire"),
        }
        sys.stdout.write(json.dumps(announcement) + "\n")
        sys.stdout.flush()
        reachable = host if host not in ("0.0.0.0", "::") else "THIS-HOST"
        logger.info("workers join with GRADWIRE_MASTER=%s", show_address((reachable, port)))
        if not ip_address(bound).is_loopback:
            logger.warning(
                "anyone who can reach port %d can join, and change the model: "
                "keep it inside a network you trust",
                port,
            )

    def _status(self) -> dict[str, Any]:
        run = self._master.run
        return {
            "status": "ok",
            "version": version("gradwire"),
            "processes": [
                {"pid": pid, "connections": connections}
                for pid, connections in self._listening.connections_by_process.items()
            ],
            "run": run.name if run else None,
            "parameters": run.layout.elements if run else None,
            "workers": [
                {"rank": member.rank, "name": member.join.name, "phase": member.phase.name.lower()}
                for member in self._master.roster
            ],
            "versions": {str(r): s for r, s in sorted(run.relay.versions.items())} if run else {},
        }

    def _on_decoded(self) -> None:
        """Have what the decoder's thread has done taken up; called on that thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._take_decoded)

    def _take_decoded(self) -> None:
        assert self._drivers is not None
        self._master.handle_decoded(self._drivers.now())
        self._drivers.turn()

    def _stop(self, reason: str) -> None:
        self._reason = f"the master was stopped by {reason}"
        self._stopping.set()

    async def _say_goodbye(self, drivers: Drivers) -> None:
        """Tell every worker why, and wait until they have had time to hear it."""
        self._listening.accept_no_more()
        self._master.stop(self._reason, drivers.now())
        drivers.turn()
        await drivers.wait_quiet(STOP_SECONDS_MAX)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the daemon when one of its callbacks fails: going on half broken helps nobody."""
        self._failure = context.get("exception") or RuntimeError(context["message"])
        logger.critical("internal error", exc_info=self._failure)
        self._stop("an internal error")
