"""`Refusals`: finds peers at whose UDP port nothing listens, within a second.

A machine whose port is closed answers a datagram with an ICMP message, "port unreachable". A socket
that is not connected is not told of it, and one that is cannot serve several peers. So an empty
datagram, a *knock*, goes to a silent peer from a small connected socket of its own, and that socket
is told. The peer drops it.

A refusal alone ends nothing. Anyone who guesses a port can forge ICMP, and a peer that is behind a
proxy's connected socket is refused to every other socket. So what counts are two refusals while the
peer owes an answer and says nothing.
"""

import errno
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from gradwire_protocol import Address, Connection
from gradwire_protocol.connection.states import State

LOOK_SECONDS: Final = 0.2
"""How often to look: a peer that is gone is found after some looks, within a second."""

SILENT_SECONDS: Final = 0.4
"""A peer that was heard more recently is not asked."""

SILENT_ROUND_TRIPS: Final = 3
"""So long a silence is ordinary on a long path."""

REFUSALS: Final = 2
"""So many knocks have to be refused while the peer says nothing."""

REFUSED: Final = os.strerror(errno.ECONNREFUSED)
"""Why an attempt to connect has failed, as the system says it of TCP."""

GONE: Final = f"nothing listens at its port any more: {REFUSED}"
"""Why a connection has ended."""


@dataclass(slots=True)
class _Knocks:
    """The knocks at one address."""

    socket: socket.socket
    heard: float | None = None
    """When the peer was heard last."""
    refused: int = 0
    """Knocks that were refused since then."""

    def knock(self, heard: float | None) -> int:
        """Knock once; return how many knocks were refused since the peer was heard."""
        if heard != self.heard:
            self.heard, self.refused = heard, 0
        self._note()  # an answer that took its time
        try:
            self.socket.send(b"")
        except ConnectionRefusedError:
            self.refused += 1
        except OSError:
            pass  # no route for now, which is no refusal
        self._note()  # this machine's own answer is there at once
        return self.refused

    def _note(self) -> None:
        try:
            self.socket.recv(1)
        except ConnectionRefusedError:
            self.refused += 1
        except OSError:
            pass  # nothing has come


class Refusals:
    """Ends connections over UDP where nothing listens at the peer's port."""

    def __init__(self) -> None:
        self._knocks: dict[Address, _Knocks] = {}

    def look(self, connections: Iterable[Connection], now: float) -> bool:
        """Knock where an answer is missing; end what is refused.

        A peer on this machine that owes no answer is asked for one first. Returns whether there is
        something to send or to report.
        """
        acted, silent = False, dict[Address, Connection]()
        for connection in connections:
            if not _is_silent(connection, now):
                continue
            if connection.state is State.OPEN and not connection.bytes_in_flight:
                if _is_here(connection.address):
                    connection.ask(now)
                    acted = True
                continue
            silent[connection.address] = connection
        for address in self._knocks.keys() - silent.keys():
            self._knocks.pop(address).socket.close()
        for address, connection in silent.items():
            knocks = self._knocks.get(address) or _new_knocks(address)
            if knocks is None:
                continue
            self._knocks[address] = knocks
            if knocks.knock(connection.last_heard) >= REFUSALS:
                connection.abort(REFUSED if connection.state is State.CONNECTING else GONE)
                acted = True
        return acted

    def close(self) -> None:
        """Close the sockets."""
        while self._knocks:
            self._knocks.popitem()[1].socket.close()


def _is_silent(connection: Connection, now: float) -> bool:
    if connection.state is State.CONNECTING:
        return True
    if connection.state is not State.OPEN or connection.last_heard is None:
        return False
    ordinary = max(SILENT_SECONDS, SILENT_ROUND_TRIPS * (connection.rtt or 0.0))
    return now - connection.last_heard >= ordinary


def _is_here(address: Address) -> bool:
    """Return whether an address leads to this machine without a network."""
    assert isinstance(address, tuple)
    found = ip_address(address[0].partition("%")[0])
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _new_knocks(address: Address) -> _Knocks | None:
    """Return a socket to knock at an address with; None where there is no way there now."""
    assert isinstance(address, tuple)
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:
        return None  # no descriptor is left
    try:
        sock.setblocking(False)
        sock.connect(address)
    except OSError:
        sock.close()
        return None
    return _Knocks(sock)
