"""`RelayDaemon`: a relay with sockets, a clock and signals."""

import asyncio
import json
import logging
import os
import platform
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from ipaddress import ip_address
from time import monotonic
from typing import Any, Final

from gradwire_codecs import warm_up
from gradwire_protocol.messages.relays import RELAY_ID_BYTES
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.key_source import KeySource
from gradwire_server.daemon.listening import Listening, Transport
from gradwire_server.relaying.node import RelayNode
from gradwire_udp import Drivers, show_address, split_address
from gradwire_udp.sockets import PORT
from gradwire_udp.udp.refusals import LOOK_SECONDS, Refusals

logger = logging.getLogger("gradwire.relay")

STOP_SECONDS_MAX: Final = 2.0
"""How long closing all connections may take."""

HOST_CHARACTERS_MAX: Final = 40
"""Of the name of this machine, in that of the relay's key."""


class RelayDaemon:
    """A relay that runs until it is told to stop.

    Parameters
    ----------
    config : MasterConfig
        Its limits.
    listen : str
        ``host:port`` for workers.
    parents : sequence of str
        ``host:port`` of its parent, and others to try.
    transport : str
    keys : KeySource
    """

    def __init__(
        self,
        config: MasterConfig,
        listen: str,
        parents: Sequence[str],
        transport: Transport,
        keys: KeySource,
    ) -> None:
        self._listen = listen
        name = f"relay-{platform.node()[:HOST_CHARACTERS_MAX] or 'host'}-{os.getpid()}"
        keyring, insecure = keys.read(), keys.insecure
        self._listening = Listening(config, transport, keyring, insecure=insecure, relay=name)
        relay_id = os.urandom(RELAY_ID_BYTES)
        # Workers elsewhere would take an address of loopback for one of their own machine.
        tells = _is_loopback(listen) or not any(map(_is_loopback, parents))
        self.node = RelayNode(
            config, parents, self._listening.dial, relay_id, monotonic(), tells=tells
        )
        self._stopping = asyncio.Event()
        self._reason = ""
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Listen, announce the address on stdout, and serve until a signal comes.

        Raises
        ------
        AddressInUseError
            If the address is taken.
        UsageError, UnreachableError
            If it is not an address of this machine.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        warm_up()  # else the first update would wait for the compiler
        drivers = self._listening.open(self._listen, self.node, loop)
        refusals = asyncio.create_task(self._look_for_refusals(drivers))
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
            drivers.turn()  # it dials its parent at once, not when somebody calls
            self._announce()
            await self._stopping.wait()
            logger.info("stopping: %s; messages dropped: %d", self._reason, self.node.dropped)
            self._listening.stop_accepting()
            self.node.stop(self._reason, drivers.now())
            drivers.turn()
            await drivers.wait_quiet(STOP_SECONDS_MAX)
        finally:
            refusals.cancel()
            drivers.close()
        if self._failure is not None:
            raise self._failure

    def _announce(self) -> None:
        """Write the address for workers to stdout, as one line of JSON."""
        relay = show_address(self._listening.address[:2])
        announcement = {"relay": relay, "pid": os.getpid(), "version": version("gradwire")}
        sys.stdout.write(json.dumps(announcement) + "\n")
        sys.stdout.flush()
        logger.info("workers join with GRADWIRE_MASTER=%s", relay)

    async def _look_for_refusals(self, drivers: Drivers) -> None:
        """End the connection to a parent that is gone."""
        refusals = Refusals()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                up = self.node.up
                if refusals.look([] if up is None else [up], drivers.now()):
                    drivers.turn()
        finally:
            refusals.close()

    def _stop(self, name: str) -> None:
        self._reason = f"the relay was stopped by {name}"
        self._stopping.set()

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the daemon when a callback fails: its state may be wrong from then on."""
        self._failure = context.get("exception") or RuntimeError(context["message"])
        logger.critical("internal error", exc_info=self._failure)
        self._reason = "the relay was stopped by an internal error"
        self._stopping.set()


def _is_loopback(address: str) -> bool:
    """Return whether only this machine has an address."""
    host = split_address(address, PORT)[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
