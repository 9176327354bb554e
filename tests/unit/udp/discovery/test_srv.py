"""Addresses of a master in SRV records, of a real DNS server on loopback."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from gradwire_protocol import UnreachableError
from gradwire_udp.discovery import srv
from gradwire_udp.discovery.announcement import NotAnnouncedError
from gradwire_udp.discovery.srv import SrvPlace
from support.waiting import BRIEF
from support.wording import naming

pytest.importorskip("dns", reason="needs dnspython: pip install 'gradwire[dns]'")

if TYPE_CHECKING:
    from support.dns_server import DnsServer
else:
    DnsServer = pytest.importorskip("support.dns_server").DnsServer

NAME = "_gradwire._udp.example.test."


@pytest.fixture
def server() -> Iterator[DnsServer]:
    with DnsServer() as running:
        yield running


def place(server: DnsServer) -> SrvPlace:
    return SrvPlace.parse(f"{server.address}/{NAME}")


def test_addresses_come_by_priority(server: DnsServer) -> None:
    server.records = [
        (NAME, "SRV", "20 0 40124 standby.test."),
        (NAME, "SRV", "10 0 40123 master.test."),
    ]

    found = place(server).open().read()

    assert found.masters == ("master.test:40123", "standby.test:40124")
    assert found.settings == {}


def test_of_one_priority_the_first_comes_as_often_as_its_weight_says(server: DnsServer) -> None:
    """RFC 2782: 9 of 10. That it is not more than half has a probability below 1e-9."""
    server.records = [
        (NAME, "SRV", "10 1 1 light.test."),
        (NAME, "SRV", "10 9 2 heavy.test."),
    ]
    reader = place(server).open()

    first = Counter(reader.read().masters[0] for _ in range(60))

    assert first["heavy.test:2"] > 30
    assert sum(first.values()) == 60


def test_no_more_addresses_are_taken_than_a_worker_tries(server: DnsServer) -> None:
    server.records = [(NAME, "SRV", f"{n} 0 {n} h{n}.test.") for n in range(1, 20)]

    assert place(server).open().read().masters == tuple(f"h{n}.test:{n}" for n in range(1, 17))


@pytest.mark.parametrize(
    "records",
    [[], [("other.test.", "A", "10.0.0.1")], [(NAME, "SRV", "0 0 0 .")]],
    ids=["no name", "another name", "decidedly no service"],
)
def test_a_name_without_a_master_may_get_one(
    server: DnsServer, records: list[tuple[str, str, str]]
) -> None:
    server.records = records
    reader = place(server).open()
    with pytest.raises(NotAnnouncedError, match=naming(NAME)):
        reader.read()

    server.records = [(NAME, "SRV", "0 0 1 late.test.")]

    assert reader.read().masters == ("late.test:1",)


def test_a_server_that_is_silent_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srv, "ANSWER_SECONDS", BRIEF)
    with DnsServer(is_silent=True) as server:
        with pytest.raises(UnreachableError, match=naming(NAME, "DNS")):
            place(server).open().read()

        assert server.asked > 0
