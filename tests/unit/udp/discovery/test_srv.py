"""Addresses of a master in SRV records, of a real DNS server on loopback."""

from collections import Counter
from collections.abc import Iterator

import pytest

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.places import place_of
from gradwire_udp.discovery.reading import NotAnnouncedError
from gradwire_udp.discovery.search import Search
from gradwire_udp.discovery.srv import SrvPlace
from support.dns_server import DnsServer
from support.wording import naming

NAME = "_gradwire._udp.example.test."


@pytest.fixture
def server() -> Iterator[DnsServer]:
    with DnsServer() as running:
        yield running


def place(server: DnsServer) -> SrvPlace:
    found = place_of(f"dns+srv://{server.address}/{NAME}")
    assert isinstance(found, SrvPlace)
    return found


def test_addresses_come_by_priority(server: DnsServer) -> None:
    server.records = [
        (NAME, "SRV", "20 0 40124 standby.test."),
        (NAME, "SRV", "10 0 40123 master.test."),
    ]

    found = place(server).open().read(5.0)

    assert (found.master, found.others) == ("master.test:40123", ("standby.test:40124",))
    assert found.keys is None, "nothing is known of them"


def test_of_one_priority_the_first_comes_as_often_as_its_weight_says(server: DnsServer) -> None:
    """RFC 2782: 9 of 10. That it is not more than half has a probability below 1e-9."""
    server.records = [
        (NAME, "SRV", "10 1 1 light.test."),
        (NAME, "SRV", "10 9 2 heavy.test."),
    ]
    reader = place(server).open()

    first = Counter(reader.read(5.0).master for _ in range(60))

    assert first["heavy.test:2"] > 30
    assert sum(first.values()) == 60


def test_an_address_that_the_server_sends_along_is_taken(server: DnsServer) -> None:
    server.records = [
        (NAME, "SRV", "1 0 40123 four.test."),
        (NAME, "SRV", "2 0 40123 six.test."),
        ("four.test.", "A", "10.0.2.4"),
        ("six.test.", "AAAA", "fd00::6"),
    ]

    found = place(server).open().read(5.0)

    assert (found.master, found.others) == ("10.0.2.4:40123", ("[fd00::6]:40123",))


def test_a_target_with_addresses_of_both_versions_of_ip_is_tried_at_all_ipv4_first(
    server: DnsServer,
) -> None:
    server.records = [
        (NAME, "SRV", "1 0 40123 both.test."),
        ("both.test.", "AAAA", "fd00::6"),
        ("both.test.", "A", "10.0.2.4"),
        ("both.test.", "A", "10.0.2.5"),
    ]

    found = place(server).open().read(5.0)

    assert {found.master, found.others[0]} == {"10.0.2.4:40123", "10.0.2.5:40123"}
    assert found.others[1:] == ("[fd00::6]:40123",)


def test_no_more_addresses_are_taken_than_a_worker_tries(server: DnsServer) -> None:
    server.records = [(NAME, "SRV", f"{n} 0 {n} h{n}.test.") for n in range(1, 20)]

    found = place(server).open().read(5.0)

    assert found.master == "h1.test:1"
    assert len(found.others) == 3


@pytest.mark.parametrize(
    "records",
    [[], [("other.test.", "A", "10.0.0.1")], [(NAME, "SRV", "0 0 0 .")]],
    ids=["no name", "another name", "decidedly no service"],
)
def test_a_name_without_a_master_may_get_one(
    server: DnsServer, records: list[tuple[str, str, str]]
) -> None:
    server.records = records
    with pytest.raises(NotAnnouncedError, match=naming(NAME.rstrip("."))):
        place(server).open().read(5.0)
    server.records = [(NAME, "SRV", "0 0 1 late.test.")]

    search = Search(place(server), answer_seconds=5.0, start_seconds=5.0)

    assert search.run().master == "late.test:1"


def test_a_server_that_is_silent_is_named_in_time() -> None:
    with DnsServer(is_silent=True) as server:
        search = Search(place(server), answer_seconds=1.0, start_seconds=30.0)

        with pytest.raises(UnreachableError, match=naming(place(server).text, "waited 1 s", "DNS")):
            search.run()

        assert server.asked > 0


def test_a_name_that_dns_does_not_take_is_refused(server: DnsServer) -> None:
    with pytest.raises(UsageError, match=naming("escaped")):
        SrvPlace("a\\999.test", server.address).open().read(5.0)
