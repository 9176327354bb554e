"""The daemon: a master with a socket, a clock, signals and an HTTP side."""

import asyncio
import errno
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
from gradwire_protocol import Endpoint, UsageError
from gradwire_server.config import MasterConfig
from gradwire_server.http import HttpServer
from gradwire_server.master import Master
from gradwire_server.metrics import MasterCollector, ServerMetrics
from gradwire_udp import (
    SocketCounters,
    UdpDriver,
    open_socket,
    resolve,
    show_address,
    split_address,
)

logger = logging.getLogger("gradwire.daemon")

HTTP_PORT: Final = 40124
STOP_SECONDS_MAX: Final = 2.0
"""How long goodbyes may take: some probe timeouts to the farthest worker."""


class AddressInUseError(UsageError):
    """Something else listens at the address already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a daemon listens, and where it says it does."""

    listen: str
    """``host:port`` for workers; port 0 takes a free one."""
    http: str | None
    """``host:port`` for HTTP; None for no HTTP at all."""
    advertise: str | None = None
    """``host`` or ``host:port`` that workers should use, where it differs."""


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
        self._master = Master(config, self._metrics)
        self._endpoint = Endpoint(
            config.connection, random_bytes=os.urandom, connections_max=config.connections_max
        )
        self._counters = SocketCounters()
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
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        warm_up()  # else the first update would have to wait for the compiler
        driver = self._open(loop)
        self._metrics.registry.register(
            MasterCollector(self._master, self._endpoint.counters, self._counters)
        )
        http = HttpServer(self._metrics.registry, self._status)
        try:
            http_address = await self._start_http(http)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
            self._announce(driver, http_address)
            await self._stopping.wait()
            logger.info("stopping: %s", self._reason)
            await self._say_goodbye(driver)
        finally:
            await http.close()
            driver.close()
        if self._failure is not None:
            raise self._failure

    def _open(self, loop: asyncio.AbstractEventLoop) -> UdpDriver:
        family, address = resolve(self._addresses.listen)
        try:
            sock = open_socket(address, family)
        except OSError as error:
            raise _explained(error, "UDP", self._addresses.listen, "--listen") from None
        return UdpDriver(sock, self._endpoint, self._master, loop, self._counters)

    async def _start_http(self, http: HttpServer) -> str | None:
        if self._addresses.http is None:
            return None
        host, port = split_address(self._addresses.http, HTTP_PORT)
        try:
            await http.start(host, port)
        except OSError as error:
            raise _explained(error, "HTTP", self._addresses.http, "--http") from None
        return show_address((host, http.port))

    def _announce(self, driver: UdpDriver, http_address: str | None) -> None:
        """Say on stdout, in one line that a program can read, where workers find us."""
        bound, port = driver.address[:2]
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
                "anyone who can send UDP to port %d can join, and change the model: "
                "keep it inside a network you trust",
                port,
            )

    def _status(self) -> dict[str, Any]:
        run = self._master.run
        return {
            "status": "ok",
            "version": version("gradwire"),
            "run": run.name if run else None,
            "parameters": run.layout.elements if run else None,
            "workers": [
                {"rank": member.rank, "name": member.join.name, "phase": member.phase.name.lower()}
                for member in self._master.roster
            ],
            "versions": {str(r): s for r, s in sorted(run.relay.versions.items())} if run else {},
        }

    def _stop(self, reason: str) -> None:
        self._reason = f"the master was stopped by {reason}"
        self._stopping.set()

    async def _say_goodbye(self, driver: UdpDriver) -> None:
        """Tell every worker why, and wait until they have had time to hear it."""
        self._endpoint.connections_max = 0
        self._master.stop(self._reason, driver.now())
        driver.turn()
        await driver.wait_quiet(STOP_SECONDS_MAX)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the daemon when one of its callbacks fails: going on half broken helps nobody."""
        self._failure = context.get("exception") or RuntimeError(context["message"])
        logger.critical("internal error", exc_info=self._failure)
        self._stop("an internal error")


def _explained(error: OSError, what: str, address: str, option: str) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"{what} address {address} is in use: another master may be running; stop it, or "
            f"choose another port with {option}"
        )
    return UsageError(f"cannot listen at {what} address {address}: {error.strerror or error}")
