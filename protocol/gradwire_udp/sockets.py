"""Addresses and sockets.

An address is written ``host:port`` or ``host``, or ``[host]:port`` if the host is an IPv6 address.
"""

import ipaddress
import socket
from collections.abc import Hashable, Iterable
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from gradwire_protocol import Address, UnreachableError, UsageError

PORT: Final = 40123
"""The master's default port, for UDP and TCP."""

LISTEN_BACKLOG: Final = 128
"""Workers that may connect at the same moment."""

SocketAddress: TypeAlias = tuple[str, int] | tuple[str, int, int, int]

Destination: TypeAlias = tuple[socket.AddressFamily, SocketAddress]
"""One address of a master, with its family."""


def split_address(text: str, default_port: int = PORT) -> tuple[str, int]:
    """Split ``host:port``; the port may be missing.

    Raises
    ------
    UsageError
        If it is not written as an address.
    """
    scheme, separator, rest = text.partition("://")
    if separator:
        raise UsageError(
            f"address {text!r}: gradwire is not {scheme.upper()}; write host:port without "
            f"'{scheme}://', with the port where the master takes workers"
        )
    host, port_text = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"address {text!r}; an IPv6 address is written [host]:port")
        port_text = rest[1:]
    elif text.count(":") == 1:
        host, _, port_text = text.partition(":")
    elif ":" in text and not _is_ipv6(text):
        host, _, port_text = text.rpartition(":")
        hint = f": write [{host}]:{port_text}" if _is_ipv6(host) else ""
        raise UsageError(f"address {text!r}; an IPv6 address is written [host]:port{hint}")
    port = default_port
    if port_text:
        if not port_text.isdecimal() or not 0 <= int(port_text) <= 65535:
            raise UsageError(f"address {text!r}: the port {port_text!r} is not 0 to 65535")
        port = int(port_text)
    if not host:
        raise UsageError(f"address {text!r} has no host")
    return host, port


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def show_address(address: object) -> str:
    """Return a socket address as ``host:port`` or ``[host]:port``."""
    if not isinstance(address, tuple):
        return str(address)
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def show_addresses(addresses: Iterable[tuple[object, object]]) -> str:
    """Return the results of `resolve_all` as text."""
    return " or ".join(show_address(address) for _, address in addresses)


def source_of(address: Address) -> Hashable:
    """Return the key by which limits count an address: the IPv4 host, or the IPv6 network (/64).

    A machine with one address of an IPv6 network has 2^64 of them (RFC 4291, section 2.5.4).
    """
    host = address[0] if isinstance(address, tuple) else getattr(address, "host", None)
    if not isinstance(host, str):
        return address
    if ":" not in host:
        return host
    parsed = ipaddress.IPv6Address(host.partition("%")[0])
    return str(parsed.ipv4_mapped) if parsed.ipv4_mapped else parsed.packed[:8]


def resolve(text: str, default_port: int = PORT) -> Destination:
    """Look up an address; return the first result of `resolve_all`."""
    return resolve_all(text, default_port)[0]


def resolve_all(text: str, default_port: int = PORT) -> list[Destination]:
    """Look up every address of a name, in the order in which to try them.

    The system sorts them by RFC 6724. Its first one stays the first, and then both families
    alternate (RFC 8305, section 4), so that an unreachable family costs one try. For
    ``localhost`` IPv4 comes first, where masters listen by default.

    Raises
    ------
    UsageError
        If it is not written as an address.
    UnreachableError
        If the host is not known.
    """
    host, port = split_address(text, default_port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UnreachableError(
            f"unknown host {host!r} ({error}): check the spelling, or write its IP address"
        ) from None
    # The families are IPv4 and IPv6, so each address is a `SocketAddress`.
    addresses: Any = dict.fromkeys((family, address) for family, _, _, _, address in found)
    first = found[0][0]
    if found[0][4][0] == "::1" != host and any(family != first for family, _ in addresses):
        first = socket.AF_INET
    ours = [entry for entry in addresses if entry[0] == first]
    others = [entry for entry in addresses if entry[0] != first]
    return [entry for pair in zip_longest(ours, others) for entry in pair if entry is not None]


def wildcard(family: socket.AddressFamily) -> SocketAddress:
    """Return the address to bind a socket to that only dials out."""
    return ("::", 0, 0, 0) if family == socket.AF_INET6 else ("0.0.0.0", 0)


def open_socket(
    address: SocketAddress, family: socket.AddressFamily = socket.AF_INET
) -> socket.socket:
    """Return a non-blocking UDP socket bound to an address.

    Raises
    ------
    OSError
        If it cannot be bound, with the reason in `errno`.
    """
    return _open(socket.SOCK_DGRAM, address, family)


def open_listener(
    address: SocketAddress, family: socket.AddressFamily = socket.AF_INET
) -> socket.socket:
    """Return a non-blocking TCP socket that listens at an address.

    Raises
    ------
    OSError
        If it cannot be bound, with the reason in `errno`.
    """
    return _open(socket.SOCK_STREAM, address, family)


def local_address_in(network: str) -> str:
    """Return this machine's address inside a network written as CIDR.

    It is the address from which the kernel would reach the network; nothing is sent.

    Raises
    ------
    UsageError
        If `network` is not valid, or this machine has no address inside it.
    """
    try:
        parsed = ipaddress.ip_network(network, strict=False)
    except ValueError as error:
        raise UsageError(f"network {network!r}: {error}") from None
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    for candidate in (parsed[0], parsed[-1], parsed[parsed.num_addresses // 2]):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((str(candidate), 9))
                address = str(probe.getsockname()[0])
        except OSError:
            continue  # no route there, or no such protocol on this machine
        if ipaddress.ip_address(address) in parsed:
            return address
    raise UsageError(f"this machine has no address in network {network}")


def _open(
    kind: socket.SocketKind, address: SocketAddress, family: socket.AddressFamily
) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6 and address[0] == "::":
            # One socket for both versions of IP, even if the system's default is IPv6 alone.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            # So that a master can start while connections of one that has just ended linger.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen(LISTEN_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
