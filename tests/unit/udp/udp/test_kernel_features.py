"""What a kernel has is found out by asking it, and what is not wanted stays off."""

import socket
import sys
from dataclasses import asdict, fields, replace

import pytest

from gradwire_udp import DatagramSocket, Features, SocketCounters, open_socket
from gradwire_udp.udp.kernel_features import EVERYTHING, IP_MTU_DISCOVER, PMTUDISC_PROBE, switch_on
from support.datagrams import HERE, NOTHING, needs_ipv6, receive_datagrams, train
from support.fickle_socket import FickleSocket

NAMES = [field.name for field in fields(Features)]

OPTIONS = {
    "gso": (17, 103),
    "gro": (17, 104),
    "ecn": (socket.IPPROTO_IP, 13),
    "overflow": (socket.SOL_SOCKET, 40),
    "dont_fragment": (socket.IPPROTO_IP, 10),
}
"""What Linux is asked for, by level and number."""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_wanted_stays_off(name: str) -> None:
    with open_socket(("127.0.0.1", 0)) as sock:
        assert switch_on(sock, Features(**{name: False})) == replace(HERE, **{name: False})


@on_linux
@pytest.mark.parametrize("name", NAMES)
def test_what_a_kernel_does_not_know_is_off_and_datagrams_are_carried_all_the_same(
    name: str,
) -> None:
    with FickleSocket.on_loopback(unknown=[OPTIONS[name]]) as sock:
        one = DatagramSocket(sock, SocketCounters())
        there = train([100] * 4, one.address)

        one.send(there)

        assert [payload for payload, _, _ in receive_datagrams(one, 4)] == there.datagrams()
        assert asdict(one.features) == asdict(HERE) | {name: False}


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_socket_has_what_one_of_ipv4_has(host: str) -> None:
    with open_socket((host, 0), socket.AF_INET6) as sock:
        assert switch_on(sock, EVERYTHING) == HERE


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with AnyOption(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert switch_on(sock, EVERYTHING) == NOTHING


class AnyOption(socket.socket):
    """A socket that takes every option."""

    def setsockopt(self, *_: object) -> None:
        pass


@on_linux
def test_the_kernel_s_guess_of_the_path_is_not_asked() -> None:
    with open_socket(("127.0.0.1", 0)) as sock:
        switch_on(sock, EVERYTHING)

        assert sock.getsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER) == PMTUDISC_PROBE
