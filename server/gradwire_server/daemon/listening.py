"""`Listening`: where workers reach the master, over UDP and over TCP.

Each has its own endpoint, and the master treats the connections of both alike. Workers use UDP,
unless a firewall drops it. Where the master has several processes, UDP is spread over all of them:
see `shards`.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address
from time import time_ns
from typing import Any, Final, Literal, get_args

from gradwire_protocol import Connection, Credentials, Endpoint, Role, SessionIds, UsageError
from gradwire_protocol.crypto.keys import Keyring
from gradwire_server.config import MasterConfig
from gradwire_server.shards.figures import Figures
from gradwire_server.shards.steering import open_others
from gradwire_server.shards.supervisor import Supervisor
from gradwire_udp import (
    Application,
    Drivers,
    TcpCounters,
    TcpDriver,
    UdpDriver,
    open_listener,
    open_socket,
    resolve,
    source_of,
)
from gradwire_udp.udp.refusals import is_here

logger = logging.getLogger("gradwire.daemon")

Transport = Literal["auto", "udp", "tcp"]

STANDBY_NAME: Final = "standby"
"""Name in the key that a standby derives for itself. A run has one standby: of two connections with
this key, the newer one stays."""

PORTS_TRIED: Final = 8
"""Where port 0 was asked for: how many free UDP ports are tried until TCP has the same one free."""


class AddressInUseError(UsageError):
    """Another program listens at the address already."""


class Listening:
    """The sockets of a master and their endpoints.

    Parameters
    ----------
    transport : str
        ``"udp"``, ``"tcp"``, or ``"auto"`` for both, or for UDP alone where the port is taken for
        TCP.
    keyring : Keyring, optional
        Without it, everyone is let in, and packets are not sealed.
    instance : str
        Tells this master from others with the same run key; see `Credentials`.
    insecure : bool
        Whether it may run without a keyring where other machines can reach it.
    """

    def __init__(
        self,
        config: MasterConfig,
        transport: Transport,
        keyring: Keyring | None = None,
        *,
        instance: str = "",
        insecure: bool = False,
    ) -> None:
        if transport not in get_args(Transport):
            raise UsageError(f"transport={transport!r}; it is 'auto', 'udp' or 'tcp'")
        if transport == "tcp" and config.processes > 1:
            raise UsageError(
                f"processes={config.processes}; over TCP alone it is 1: only UDP is spread over "
                "processes"
            )
        if transport == "tcp" and config.standby_of is not None:
            raise UsageError("a standby reaches its primary over UDP: leave out --transport tcp")
        self.figures = Figures()
        """Counters of both endpoints, and of those in other processes."""
        self.streams = TcpCounters()
        self.address: tuple[Any, ...] = ()
        """The bound address; empty before `open`."""
        self._config = config
        self._transport = transport
        self._keyring = keyring
        self._instance = instance
        self._insecure = insecure
        self._shards: Supervisor | None = None
        self._udp = Endpoint(
            config.connection,
            random_bytes=os.urandom,
            connections_max=config.connections_max,
            link_rate=config.link_bytes_per_second,
            shard=SessionIds(0, config.processes),
            counters=self.figures.counters,
            connections_elsewhere=lambda: len(self._tcp) + self._in_shards,
            credentials=self._credentials(instance, dials=config.standby_of is not None),
            source_of=source_of,
        )
        self._tcp = Endpoint(
            config.connection.over_tcp,
            random_bytes=os.urandom,
            connections_max=config.connections_max,
            counters=self.figures.counters,
            connections_elsewhere=lambda: len(self._udp) + self._in_shards,
            credentials=self._credentials(""),  # no session outlives a TCP connection
            source_of=source_of,
        )

    @property
    def connections_by_process(self) -> dict[int, int]:
        """Number of connections by process id, this process first."""
        shards = {} if self._shards is None else self._shards.connections_by_process
        return {os.getpid(): len(self._udp) + len(self._tcp)} | shards

    def open(
        self,
        listen: str,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Drivers:
        """Listen at an address. The caller calls `start` next.

        `on_lost` is called when one of the other processes has ended unasked.

        Raises
        ------
        AddressInUseError
            If the address is taken.
        UsageError, UnreachableError
            If it is not an address of this machine, or others can reach it and there is no keyring.
        """
        datagrams, listener = self._sockets(listen)
        drivers = Drivers(application, loop)
        sockets = self.figures.sockets
        if datagrams is not None:
            self.address = datagrams.getsockname()
            others = self._others(datagrams, listener)
            drivers.add(lambda shared: UdpDriver(datagrams, self._udp, shared, loop, sockets))
            if others:
                local, self.figures = self.figures, Figures()
                self._shards = drivers.add(
                    lambda shared: Supervisor(
                        self._config, others, shared, loop, local=local, total=self.figures,
                        link=self._udp.link, on_lost=on_lost,
                        local_connections=lambda: len(self._udp) + len(self._tcp),
                        keyring=self._keyring, instance=self._instance,
                    )
                )  # fmt: skip
        if listener is not None:
            self.address = self.address or listener.getsockname()
            drivers.add(lambda shared: TcpDriver(self._tcp, shared, loop, self.streams, listener))
        return drivers

    async def start(self) -> None:
        """Start the other processes, if there are any, and wait until they are ready."""
        if self._shards is not None:
            await self._shards.start()

    async def refresh(self) -> None:
        """Bring `figures` up to date."""
        if self._shards is not None:
            await self._shards.refresh()

    def dial(self, master: str, now: float) -> Connection:
        """Begin a connection to another master, over UDP.

        Raises
        ------
        UsageError, UnreachableError
            If its address cannot be reached from the address this master listens at.
        """
        family, address = resolve(master)
        ours = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        if family != ours:
            raise UsageError(
                f"{master} is at {address[0]}, and this master listens at {self.address[0]}: use "
                "IPv4 for both, or IPv6 for both"
            )
        return self._udp.connect(address, now)

    def connections_here(self) -> list[Connection]:
        """Return the connections over UDP with processes of this machine."""
        return [each for each in self._udp.connections() if is_here(each.address)]

    def set_keyring(self, keyring: Keyring, now: float) -> None:
        """Admit only the workers of this keyring, and close all other connections.

        The caller runs a turn next. There must have been a keyring from the beginning.
        """
        self._keyring = keyring
        self._udp.set_keyring(keyring, now)
        self._tcp.set_keyring(keyring, now)
        if self._shards is not None:
            self._shards.set_keyring(keyring)

    def stop_accepting(self) -> None:
        """Accept no new connections."""
        self._udp.connections_max = self._tcp.connections_max = 0
        if self._shards is not None:
            self._shards.stop()

    @property
    def _in_shards(self) -> int:
        return 0 if self._shards is None else len(self._shards)

    def _credentials(self, instance: str, *, dials: bool = False) -> Credentials | None:
        if self._keyring is None:
            return None
        key = self._keyring.run_keys[0].worker_key(STANDBY_NAME, Role.STANDBY) if dials else None
        return Credentials(keyring=self._keyring, unix_time_ns=time_ns, instance=instance, key=key)

    def _check_exposure(self, host: str, listen: str) -> None:
        """Raise `UsageError` where other machines can reach a master without keys."""
        if self._keyring is None and not self._insecure and not ip_address(host).is_loopback:
            raise UsageError(
                f"without a key, anyone who can reach {listen} could join, and change the model: "
                "make a key with `gradwire keygen run.key` and pass --key-file run.key; or pass "
                "--insecure, where everyone in that network is trusted"
            )

    def _others(
        self, datagrams: socket.socket, listener: socket.socket | None
    ) -> list[socket.socket]:
        if self._config.processes == 1:
            return []
        try:
            return open_others(datagrams, self._config.processes)
        except UsageError:
            datagrams.close()
            if listener is not None:
                listener.close()
            raise

    def _sockets(self, listen: str) -> tuple[socket.socket | None, socket.socket | None]:
        family, address = resolve(listen)
        self._check_exposure(address[0], listen)
        if self._transport == "tcp":
            try:
                return None, open_listener(address, family)
            except OSError as error:
                raise bind_error(error, "TCP", listen, "--listen") from None
        datagrams, failure = None, None
        for _ in range(PORTS_TRIED):
            try:
                datagrams = open_socket(address, family)
            except OSError as error:
                raise bind_error(error, "UDP", listen, "--listen") from None
            if self._transport == "udp":
                return datagrams, None
            try:
                return datagrams, open_listener(datagrams.getsockname(), family)
            except OSError as error:
                failure = error
            if address[1]:
                break  # this port was asked for
            datagrams.close()
        else:
            datagrams = open_socket(address, family)
        assert failure is not None
        logger.warning(
            "no TCP at %s (%s): workers behind firewalls that let no UDP through cannot join. Stop "
            "the program that uses that port, choose another port with --listen, or pass "
            "--transport udp",
            listen, failure.strerror,
        )  # fmt: skip
        return datagrams, None


def bind_error(error: OSError, what: str, address: str, option: str) -> UsageError:
    """Return the error for an address at which the master cannot listen."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"{what} address {address} is in use: another master may be running; stop it, or "
            f"choose another port with {option}"
        )
    return UsageError(f"cannot listen at {what} address {address}: {error.strerror or error}")
