"""`Listening`: where workers reach the master, over UDP and over TCP.

Each has its own endpoint, and the master treats the connections of both alike. Workers use UDP,
unless a firewall drops it. `RefusedHandshakes` says in the log which peers are refused there, and
why.
"""

import asyncio
import errno
import logging
import os
import platform
import socket
from ipaddress import ip_address
from time import time_ns
from typing import Any, Final, Literal, get_args

from gradwire_protocol import Connection, Counters, Credentials, Endpoint, Role, UsageError
from gradwire_protocol.counters import Drop, RefusedInit
from gradwire_protocol.crypto.keys import FINGERPRINT_BYTES, Keyring
from gradwire_server.config import MasterConfig
from gradwire_udp import (
    Application,
    Drivers,
    SocketCounters,
    TcpCounters,
    TcpDriver,
    UdpDriver,
    open_listener,
    open_socket,
    resolve,
    show_address,
    source_of,
)

logger = logging.getLogger("gradwire.daemon")

Transport = Literal["auto", "udp", "tcp"]

STANDBY_NAME: Final = "standby"
"""Name in the key that a standby derives for itself. A run has one standby: of two connections with
this key, the newer one stays."""

PORTS_TRIED: Final = 8
"""Where port 0 was asked for: how many free UDP ports are tried until TCP has the same one free."""

LINE_SECONDS: Final = 30.0
"""Between two lines of one reason."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at the counters."""


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
    insecure : bool
        Whether it may run without a keyring where other machines can reach it.
    relay : str, optional
        The name in its key, for a relay.
    """

    def __init__(
        self,
        config: MasterConfig,
        transport: Transport,
        keyring: Keyring | None = None,
        *,
        insecure: bool = False,
        relay: str | None = None,
    ) -> None:
        if transport not in get_args(Transport):
            raise UsageError(f"transport={transport!r}; it is 'auto', 'udp' or 'tcp'")
        if transport == "tcp" and config.standby_of is not None:
            raise UsageError("a standby reaches its primary over UDP: leave out --transport tcp")
        self.counters = Counters()
        """Of both endpoints."""
        self.datagrams = SocketCounters()
        self.streams = TcpCounters()
        self.address: tuple[Any, ...] = ()
        """The bound address; empty before `open`."""
        self._transport = transport
        self._keyring = keyring
        self._insecure = insecure
        self._udp = Endpoint(
            config.connection,
            random_bytes=os.urandom,
            connections_max=config.connections_max,
            link_rate=config.link_bytes_per_second,
            counters=self.counters,
            connections_elsewhere=lambda: len(self._tcp),
            credentials=self._credentials(
                (STANDBY_NAME, Role.STANDBY)
                if config.standby_of is not None
                else None
                if relay is None
                else (relay, Role.RELAY)
            ),
            source_of=source_of,
        )
        self._tcp = Endpoint(
            config.connection.over_tcp,
            random_bytes=os.urandom,
            connections_max=config.connections_max,
            counters=self.counters,
            connections_elsewhere=lambda: len(self._udp),
            credentials=self._credentials(),
            source_of=source_of,
        )

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._udp) + len(self._tcp)

    def open(
        self, listen: str, application: Application, loop: asyncio.AbstractEventLoop
    ) -> Drivers:
        """Listen at an address.

        Raises
        ------
        AddressInUseError
            If the address is taken.
        UsageError, UnreachableError
            If it is not an address of this machine, or others can reach it and there is no keyring.
        """
        datagrams, listener = self._sockets(listen)
        drivers = Drivers(application, loop)
        if datagrams is not None:
            self.address = datagrams.getsockname()
            self._udp.name(instance_name(self.address))
            drivers.add(
                lambda shared: UdpDriver(datagrams, self._udp, shared, loop, self.datagrams)
            )
        if listener is not None:
            self.address = self.address or listener.getsockname()
            drivers.add(lambda shared: TcpDriver(self._tcp, shared, loop, self.streams, listener))
        return drivers

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

    def set_keyring(self, keyring: Keyring, now: float) -> None:
        """Admit only the workers of this keyring, and close all other connections.

        The caller runs a turn next. There must have been a keyring from the beginning.
        """
        self._keyring = keyring
        self._udp.set_keyring(keyring, now)
        self._tcp.set_keyring(keyring, now)

    def stop_accepting(self) -> None:
        """Accept no new connections."""
        self._udp.connections_max = self._tcp.connections_max = 0

    def _credentials(self, dials_as: tuple[str, Role] | None = None) -> Credentials | None:
        if self._keyring is None:
            return None
        key = None if dials_as is None else self._keyring.run_keys[0].worker_key(*dials_as)
        return Credentials(keyring=self._keyring, unix_time_ns=time_ns, key=key)

    def _check_exposure(self, host: str, listen: str) -> None:
        """Raise `UsageError` where other machines can reach a master without keys."""
        if self._keyring is None and not self._insecure and not ip_address(host).is_loopback:
            raise UsageError(
                f"without a key, anyone who can reach {listen} could join, and change the model: "
                "make a key with `gradwire keygen run.key` and pass --key-file run.key; or pass "
                "--insecure, where everyone in that network is trusted"
            )

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


def instance_name(address: tuple[Any, ...]) -> str:
    """Return a name for the master that listens there: unique, and the same after a restart.

    It is of the address that the socket has. One that was told to take any free port is started
    again at the port that it had, and has to know its sessions again as not its own.
    """
    return f"{platform.node()} {show_address(address)}"


def bind_error(error: OSError, what: str, address: str, option: str) -> UsageError:
    """Return the error for an address at which the master cannot listen."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"{what} address {address} is in use: another master may be running; stop it, or "
            f"choose another port with {option}"
        )
    return UsageError(f"cannot listen at {what} address {address}: {error.strerror or error}")


class RefusedHandshakes:
    """Says in the log which peers are refused: compares counters with those of the last look.

    A master answers no handshake without a key of its run, and tells such a worker nothing. Its
    operator should still see that somebody tries. An attacker could fill a disk with lines, so
    there is one for each reason at most every `LINE_SECONDS`, with a count.

    Parameters
    ----------
    has_keys : bool
        Whether the master has keys.
    """

    def __init__(self, counters: Counters, *, has_keys: bool) -> None:
        self._counters = counters
        self._said: dict[Drop, tuple[int, float]] = {}
        """By reason: how many there were at the last line, and when that was."""
        self._texts = {
            Drop.OTHER_SUITE: "without a key, which this master asks for"
            if has_keys
            else "with a key, and this master has none (--key-file)",
            Drop.UNKNOWN_KEY: "with a key of another run",
            Drop.DENIED: "with a name that is denied",
            Drop.REPLAYED: "that are no newer than the last one of the same key: two processes may "
            "have it, or a clock has been set back",
        }

    def look(self, now: float) -> None:
        """Log what has been refused since the last line."""
        for reason, text in self._texts.items():
            count = self._counters.drops[reason]
            before, at = self._said.get(reason, (0, -LINE_SECONDS))
            if count > before and now - at >= LINE_SECONDS:
                self._said[reason] = count, now
                # Not as a value: of lines with one text, the log shows one in a second.
                line = f"refused %d handshake datagrams {text}%s"
                logger.warning(line, count - before, _one_of(self._counters.refused.get(reason)))
                self._counters.refused.pop(reason, None)


def _one_of(refused: RefusedInit | None) -> str:
    """Return where one of them came from, if this process of the master had any."""
    if refused is None:
        return ""
    named = f", name {refused.name}" if refused.name else ""
    run = refused.key_id[1 : 1 + FINGERPRINT_BYTES]
    key = f", run key {run.hex()}" if any(refused.key_id) else ""
    return f"; one of them from {show_address(refused.address)}{named}{key}"
