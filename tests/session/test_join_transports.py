"""`gradwire.join` where UDP leads to the master, and where only TCP does."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import numpy as np
import pytest

import gradwire
from gradwire.settings.settings import Transport
from support.local_master import LocalMaster
from support.sessions import finish, join, loss_of, zeros
from support.waiting import wait_until
from support.wording import naming

QUICKLY = 1.0
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
        session = join(master)

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


def test_a_master_that_is_not_there_yet_is_waited_for_over_tcp_as_over_udp() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    joined: list[gradwire.Session] = []
    thread = threading.Thread(
        target=lambda: joined.append(gradwire.join(zeros(), master=address, transport="tcp"))
    )
    thread.start()

    with LocalMaster(listen=address) as master:
        thread.join(10.0)

        [session] = joined
        assert session.transport == "tcp"
        session.close()
        assert master.sample("gradwire_joins_total") == 1


def test_workers_of_both_kinds_end_with_the_same_parameters(master: LocalMaster) -> None:
    """Large enough that updates are cut differently for either."""
    rng = np.random.default_rng(1)
    start = rng.normal(0, 0.1, 50_000).astype(np.float32)
    transports: tuple[Transport, ...] = ("udp", "tcp", "udp", "tcp")
    targets = [start.copy() for _ in transports]
    sessions = [
        join(master, own, transport=transport, threshold=None, target_density=0.2)
        for own, transport in zip(targets, transports, strict=True)
    ]

    for _ in range(10):
        for own, session in zip(targets, sessions, strict=True):
            own += rng.normal(0, 1e-3, start.size).astype(np.float32)
            session.step()
    finish(*sessions)

    assert len({own.tobytes() for own in targets}) == 1
    assert not np.array_equal(targets[0], start)
    assert len({session.digest() for session in sessions}) == 1
    assert [session.transport for session in sessions] == list(transports)
    assert master.listening.counters.violations == 0


def test_a_master_that_stops_is_heard_over_tcp(master: LocalMaster) -> None:
    session = join(master, transport="tcp")

    master.stop("maintenance")

    assert "maintenance" in str(loss_of(session))


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
