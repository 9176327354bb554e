"""The daemon of a relay: an `Intermediary` with sockets, a clock, signals and an HTTP server."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import version
from ipaddress import ip_address
from time import monotonic
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gradwire_codecs import warm_up
from gradwire_protocol import Role, UsageError
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.collector import SocketsCollector
from gradwire_server.daemon.daemon import STOP_SECONDS_MAX, Addresses, start_http
from gradwire_server.daemon.key_source import KeySource, instance_name
from gradwire_server.daemon.listening import Listening
from gradwire_server.daemon.refused_handshakes import LOOK_SECONDS, RefusedHandshakes
from gradwire_server.http.access import Access
from gradwire_server.http.server import HttpServer
from gradwire_server.intermediary.intermediary import Intermediary
from gradwire_server.metrics import RunMetrics, ServerMetrics
from gradwire_server.updates.decoding import ThreadDecoder
from gradwire_udp import Drivers, show_address, split_address
from gradwire_udp.sockets import local_address_towards

logger = logging.getLogger("gradwire.relay")


class RelayCollector(Collector):
    """Reads, at each scrape, what a relay has done."""

    def __init__(self, relay: Intermediary) -> None:
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families with their current values."""
        relay = self._relay
        yield GaugeMetricFamily(
            "gradwire_relay_connected",
            "Of a relay: whether it stands before a master: 1, or 0.",
            value=relay.is_linked,
        )
        yield GaugeMetricFamily(
            "gradwire_relay_peers",
            "Of a relay: workers, observers and relays behind it, at whatever depth.",
            value=len(relay),
        )
        for name, documentation, value in (
            ("sums", "Sums of updates that the master was sent.", relay.counts.sums),
            ("updates_merged", "Updates of peers in these sums.", relay.counts.updates_merged),
            ("messages_carried", "Other messages, from peers or for them.", relay.counts.carried),
            (
                "blocks_filled",
                "Blocks of its own replica that workers were sent which joined later.",
                0 if relay.kept is None else relay.kept.blocks_filled,
            ),
        ):
            yield CounterMetricFamily(
                f"gradwire_relay_{name}", f"Of a relay: {documentation}", value=value
            )


class RelayDaemon:
    """A relay that runs until it is told to stop.

    Parameters
    ----------
    parent : str
        ``host:port`` of the master, or of the relay, that it stands before.
    keeps_replica : bool
        Whether it keeps a replica, for workers that join later.
    """

    def __init__(
        self,
        config: MasterConfig,
        addresses: Addresses,
        parent: str,
        access: Access | None = None,
        keys: KeySource | None = None,
        *,
        keeps_replica: bool = False,
    ) -> None:
        self._keeps_replica = keeps_replica
        self._config = config
        self._addresses = addresses
        self._parent = parent
        self._access = access or Access()
        self._keys = keys or KeySource()
        keyring = self._keys.read()
        self._metrics = ServerMetrics()
        self._listening = Listening(
            config,
            addresses.transport,
            keyring,
            instance=instance_name(addresses.listen),
            insecure=self._keys.insecure,
            dials_as=Role.RELAY,
        )
        self._has_keys = keyring is not None
        self._stopping = asyncio.Event()
        self._reason = ""
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Listen, announce the address on stdout, and serve until a signal comes.

        Raises as `Daemon.run`.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        warm_up()
        listening = self._listening

        def on_ready() -> None:
            loop.call_soon_threadsafe(self._hand_on)

        decoder = ThreadDecoder(on_ready)
        self._drivers: Drivers | None = None
        relay = self._relay = Intermediary(
            self._config,
            RunMetrics(),
            "",
            self._parent,
            listening.dial,
            monotonic(),
            decoder,
            keeps_replica=self._keeps_replica,
        )
        opened = listening.open(self._addresses.listen, relay, loop)
        with closing(opened) as drivers, closing(decoder):
            self._drivers = drivers
            relay.address = self._own_address()
            registry = self._metrics.registry
            registry.register(
                SocketsCollector(None, listening.counters, listening.datagrams, listening.streams)
            )
            registry.register(RelayCollector(relay))
            http = HttpServer(self._metrics, self._status, access=self._access)
            try:
                http_address = start_http(http, self._addresses.http, self._access)
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
                self._announce(http_address)
                drivers.turn()
                refused = RefusedHandshakes(listening.counters, has_keys=self._has_keys)
                while not await self._stops_within(LOOK_SECONDS):
                    refused.look(monotonic())
                logger.info("stopping: %s", self._reason)
                listening.stop_accepting()
                relay.stop(self._reason, drivers.now())
                drivers.turn()
                await drivers.wait_quiet(STOP_SECONDS_MAX)
            finally:
                await http.close()
        if self._failure is not None:
            raise self._failure

    async def _stops_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    def _own_address(self) -> str:
        """Return where workers reach this relay."""
        bound, port = self._listening.address[:2]
        if self._addresses.advertise is not None:
            return show_address(split_address(self._addresses.advertise, port))
        if ip_address(bound).is_unspecified:
            bound = local_address_towards(self._parent)
        elif ip_address(bound).is_loopback and not self._parent_is_here():
            raise UsageError(
                f"this relay listens at {bound}, and cannot reach a master on another machine, "
                f"{self._parent}, from there: pass --listen 0.0.0.0:{port}, or another address of "
                "this machine"
            )
        return show_address((bound, port))

    def _parent_is_here(self) -> bool:
        return ip_address(local_address_towards(self._parent)).is_loopback

    def _announce(self, http_address: str | None) -> None:
        """Write the address for workers to stdout, as one line of JSON, and to the log."""
        announcement = {
            "master": self._relay.address,
            "http": http_address,
            "pid": os.getpid(),
            "version": version("gradwire"),
        }
        sys.stdout.write(json.dumps(announcement) + "\n")
        sys.stdout.flush()
        logger.info(
            "workers join through this relay with GRADWIRE_MASTER=%s, or at the master %s",
            self._relay.address,
            self._parent,
        )

    def _status(self) -> dict[str, Any]:
        relay = self._relay
        return {
            "status": "ok",
            "version": version("gradwire"),
            "relay_of": self._parent,
            "connected": relay.is_linked,
            "peers": len(relay),
            "keeps_replica": relay.kept is not None and relay.kept.is_complete and len(relay) > 0,
        }

    def _hand_on(self) -> None:
        assert self._drivers is not None
        self._relay.handle_decoded(self._drivers.now())
        self._drivers.turn()

    def _stop(self, name: str) -> None:
        self._reason = f"the relay was stopped by {name}"
        self._stopping.set()

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the daemon when a callback fails: its state may be wrong from then on."""
        self._failure = context.get("exception") or RuntimeError(context["message"])
        logger.critical("internal error", exc_info=self._failure)
        self._reason = "the relay was stopped by an internal error"
        self._stopping.set()
