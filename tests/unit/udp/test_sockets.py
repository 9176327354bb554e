"""Addresses as people write them, and sockets as the kernel gives them."""

import errno
import socket
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp import (
    local_address_in,
    open_socket,
    resolve,
    resolve_all,
    show_address,
    show_addresses,
    split_address,
)
from gradwire_udp.sockets import PORT, SocketAddress
from support.wording import naming

# Splitting and showing.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.2.4:7", ("10.0.2.4", 7)),
        ("10.0.2.4", ("10.0.2.4", PORT)),
        ("gpu7.example:65535", ("gpu7.example", 65535)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:7", ("::1", 7)),
        ("[fe80::1%eth0]:7", ("fe80::1%eth0", 7)),
        ("[::1]", ("::1", PORT)),
        ("::1", ("::1", PORT)),
        ("fd00::2", ("fd00::2", PORT)),
    ],
)
def test_an_address_is_split_into_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("host:65536", ("port", "'65536'", 0, 65535)),
        ("host:-1", ("port", "'-1'", 0, 65535)),
        ("host:http", ("port", "'http'", 0, 65535)),
        ("[::1]:x", ("port", "'x'", 0, 65535)),
        ("[::1", ("IPv6", "[host]:port")),
        ("[::1]7", ("IPv6", "[host]:port")),
        ("2001:db8::7:40123", ("IPv6", "[host]:port", "[2001:db8::7]:40123")),
        ("gpu7:40123:1", ("IPv6", "[host]:port")),
        ("", ("host",)),
        (":7", ("host",)),
        ("[]:7", ("host",)),
    ],
)
def test_what_is_no_address_is_refused(text: str, named: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match=naming("address", repr(text), *named)):
        split_address(text)


@given(
    host=st.ip_addresses().map(str) | st.sampled_from(["localhost", "gpu7.example"]),
    port=st.integers(0, 65535),
)
def test_what_is_shown_can_be_split_again(host: str, port: int) -> None:
    assert split_address(show_address((host, port))) == (host, port)


def test_an_ipv6_address_is_shown_without_flow_and_scope_and_anything_else_as_it_is() -> None:
    assert show_address(("::1", 7, 0, 0)) == "[::1]:7"
    assert show_address("master") == "master"


# Looking up.


@pytest.mark.parametrize(
    ("written", "family", "address"),
    [
        (("127.0.0.1:7",), socket.AF_INET, ("127.0.0.1", 7)),
        (("127.0.0.1",), socket.AF_INET, ("127.0.0.1", PORT)),
        (("127.0.0.1", 80), socket.AF_INET, ("127.0.0.1", 80)),
        (("[::1]:7",), socket.AF_INET6, ("::1", 7, 0, 0)),
    ],
)
def test_an_ip_address_needs_no_looking_up(
    written: tuple[Any, ...], family: socket.AddressFamily, address: SocketAddress
) -> None:
    assert resolve(*written) == (family, address)


Entry: TypeAlias = tuple[socket.AddressFamily, int, int, str, SocketAddress]
V4 = [(socket.AF_INET, 2, 17, "", (f"127.0.0.{n}", 7)) for n in (1, 2)]
V6 = [(socket.AF_INET6, 2, 17, "", (f"::{n}", 7, 0, 0)) for n in (1, 2)]


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        ([*V6, *V4], V4[0]),
        ([V6[0], V4[1], V4[0]], V4[1]),
        (V4, V4[0]),
        (V6, V6[0]),
        ([V6[1], *V4], V6[1]),
    ],
)
def test_of_a_name_s_addresses_the_first_is_taken_but_for_the_loopback_address_of_ipv6(
    monkeypatch: pytest.MonkeyPatch, found: list[Entry], taken: Entry
) -> None:
    monkeypatch.setattr("gradwire_udp.sockets.socket.getaddrinfo", lambda *_, **__: [*found])

    assert resolve("localhost:7") == (taken[0], taken[4])


@pytest.mark.parametrize(
    ("found", "order"),
    [
        ([*V6, *V4], [V4[0], V6[0], V4[1], V6[1]]),
        ([V6[1], *V4], [V6[1], *V4]),
        ([*V4, *V6], [V4[0], V6[0], V4[1], V6[1]]),
        ([V4[0], V4[0]], [V4[0]]),
        (V6, V6),
    ],
)
def test_all_addresses_of_a_name_are_found_and_the_families_take_turns(
    monkeypatch: pytest.MonkeyPatch, found: list[Entry], order: list[Entry]
) -> None:
    monkeypatch.setattr("gradwire_udp.sockets.socket.getaddrinfo", lambda *_, **__: [*found])

    assert resolve_all("localhost:7") == [(entry[0], entry[4]) for entry in order]


def test_several_addresses_are_shown_as_alternatives() -> None:
    assert show_addresses([(entry[0], entry[4]) for entry in (V6[0], V4[0])]) == (
        "[::1]:7 or 127.0.0.1:7"
    )


@pytest.mark.parametrize("host", ["fe80::1%nowhere", "x" * 64])
def test_a_host_that_is_not_known_is_unreachable(host: str) -> None:
    with pytest.raises(UnreachableError, match=naming(repr(host), "IP address")):
        resolve(f"[{host}]:7")


# Sockets.


def test_a_socket_is_bound_and_never_blocks() -> None:
    with open_socket(("127.0.0.1", 0)) as sock:
        assert sock.type == socket.SOCK_DGRAM
        assert sock.getsockname()[0] == "127.0.0.1"
        assert sock.getsockname()[1] > 0
        assert not sock.getblocking()
        with pytest.raises(BlockingIOError):
            sock.recv(1)


def test_an_address_in_use_is_told_by_the_system_s_number() -> None:
    with open_socket(("127.0.0.1", 0)) as first:
        with pytest.raises(OSError, match="in use") as refused:
            open_socket(first.getsockname())

        assert refused.value.errno == errno.EADDRINUSE


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(OSError, match="assign") as refused:
        open_socket(("203.0.113.77", 0))

    assert refused.value.errno == errno.EADDRNOTAVAIL


# Our address inside a network.


@pytest.mark.parametrize("network", ["127.0.0.0/8", "127.0.0.1/32", "127.0.0.1/8"])
def test_this_machine_has_an_address_in_the_loopback_network(network: str) -> None:
    assert local_address_in(network) == "127.0.0.1"


@pytest.mark.parametrize("network", ["203.0.113.0/24", "198.51.100.7/32", "2001:db8::/64"])
def test_a_network_without_an_address_of_ours_is_refused(network: str) -> None:
    """These networks are reserved for examples: no machine is in them."""
    with pytest.raises(UsageError, match=naming("network", network)):
        local_address_in(network)


@pytest.mark.parametrize("network", ["10.0.0.0/33", "10.0.0/8", "somewhere", "::/129", ""])
def test_what_is_no_network_is_refused(network: str) -> None:
    with pytest.raises(UsageError, match=naming("network", repr(network))):
        local_address_in(network)
