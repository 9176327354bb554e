"""`gradwire.join` where UDP leads to the master, and where only TCP does."""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import get_args

import pytest

import gradwire
from gradwire.settings.settings import Transport
from support.local_master import LocalMaster
from support.sessions import join, zeros
from support.waiting import JOB, PROCESS, SOON, wait_until
from support.wording import naming

QUICKLY = SOON / 4
"""To connect in all; UDP has a tenth of it three times."""


@contextmanager
def behind_a_firewall(master: LocalMaster) -> Iterator[None]:
    """Let a master's port of UDP be somebody's who never answers."""
    host, port = master.address.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, int(port)))
        yield


@pytest.fixture
def unreachable() -> Iterator[LocalMaster]:
    """Yield a master that no UDP reaches."""
    with LocalMaster(transport="tcp") as master, behind_a_firewall(master):
        yield master


def connected_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("connected to")]


def test_where_udp_is_answered_udp_it_is(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gradwire.join"):
        session = join(master, connect_timeout_seconds=PROCESS)

    assert (session.transport, session.stats.transport) == ("udp", "udp")
    assert master.listening.streams.accepted == 0
    assert connected_lines(caplog) == [naming(master.address, "UDP")]


def test_where_udp_is_not_answered_it_takes_tcp_and_says_so(
    unreachable: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gradwire.join"):
        session = join(unreachable, connect_timeout_seconds=QUICKLY)

    assert (session.transport, session.stats.transport) == ("tcp", "tcp")
    assert session.stats.bytes_sent >= unreachable.listening.streams.bytes_received > 0
    assert connected_lines(caplog) == [naming(unreachable.address, "TCP", "UDP")]
    session.close()
    wait_until(lambda: not unreachable.listening.streams.open, "the end of its TCP connection")


def test_where_tcp_is_asked_for_no_udp_is_tried(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gradwire.join"):
        session = join(master, transport="tcp")

    assert session.transport == "tcp"
    assert master.listening.datagrams.datagrams_received == 0
    assert connected_lines(caplog) == [naming(master.address, "TCP")]


def test_where_udp_is_asked_for_no_tcp_is_tried(unreachable: LocalMaster) -> None:
    with pytest.raises(
        gradwire.UnreachableError, match=naming("UDP", "firewalls", "key")
    ) as refused:
        join(unreachable, transport="udp", connect_timeout_seconds=0.3)

    assert unreachable.listening.streams.accepted == 0
    assert "TCP" not in str(refused.value)


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_master_that_is_not_there_yet_is_waited_for(transport: Transport) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(
            gradwire.join, zeros(), master=address, transport=transport, start_timeout_seconds=JOB
        )
        with LocalMaster(listen=address):
            session = joining.result(PROCESS)
            assert session.transport == transport
            session.close()


# A name with several addresses.


def two_families(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
    """Return an IPv6 and an IPv4 address of any name, as `socket.getaddrinfo` would."""
    assert host == "gpu7.example"
    return [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", port)),
    ]


@pytest.mark.parametrize("transport", get_args(Transport))
@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_every_address_of_a_name_is_tried(
    monkeypatch: pytest.MonkeyPatch, transport: Transport, listen: str
) -> None:
    """The master listens at one of both; the name of its host has one of each family."""
    with LocalMaster(listen=listen) as master:
        port = master.address.rpartition(":")[2]
        monkeypatch.setattr("gradwire_udp.sockets.socket.getaddrinfo", two_families)

        with gradwire.join(zeros(), master=f"gpu7.example:{port}", transport=transport) as session:
            assert session.transport == ("tcp" if transport == "tcp" else "udp")


def test_a_master_at_no_address_of_its_name_is_named_with_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwire_udp.sockets.socket.getaddrinfo", two_families)

    with pytest.raises(gradwire.UnreachableError, match=naming("[::1]:9", "127.0.0.1:9")):
        gradwire.join(zeros(), master="gpu7.example:9", connect_timeout_seconds=0.5,
                      start_timeout_seconds=0)  # fmt: skip
