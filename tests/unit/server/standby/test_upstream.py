"""The connection to a master: dialled at one address after the other, complained about once."""

import logging

import pytest

from gradwire_protocol import Connection, ConnectionConfig, Endpoint, UnreachableError
from gradwire_server.standby.upstream import DIAL_SECONDS, Upstream

LOGGER = logging.getLogger("gradwire.tested")


class Dials:
    """In place of a network: what was dialled, and when."""

    def __init__(self, *, fails: bool = False) -> None:
        self.made: list[tuple[str, float]] = []
        self.fails = fails

    def __call__(self, master: str, now: float) -> Connection:
        self.made.append((master, now))
        if self.fails:
            raise UnreachableError("there is no such host")
        endpoint = Endpoint(ConnectionConfig(), random_bytes=lambda n: b"\1" * n)
        return endpoint.connect(master, now)


def upstream(dials: Dials, *addresses: str) -> Upstream:
    return Upstream(addresses, dials, 0.0, called="master", logger=LOGGER)


def test_it_is_dialled_at_once_and_only_once() -> None:
    dials = Dials()
    up = upstream(dials, "one:1")

    for now in (0.0, 0.1, 100.0):
        up.handle_timer(now)

    assert dials.made == [("one:1", 0.0)]
    assert up.due is None
    assert up.link is not None
    assert up.holds(up.link.connection)


def test_a_lost_one_is_dialled_at_the_next_address_and_then_at_the_first_again() -> None:
    dials = Dials()
    up = upstream(dials, "one:1", "two:2")
    now = 0.0
    for _ in range(3):
        up.handle_timer(now)
        up.lose(now)
        assert up.link is None
        now += DIAL_SECONDS

    assert [master for master, _ in dials.made] == ["one:1", "two:2", "one:1"]


def test_an_address_that_has_gone_from_the_list_is_followed_by_the_first() -> None:
    up = upstream(Dials(), "one:1", "two:2")
    up.lose(0.0)
    assert up.address == "two:2"
    up.addresses[1:] = ["three:3"]

    up.lose(0.0)

    assert up.address == "one:1"


def test_what_cannot_be_dialled_is_said_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dials = Dials(fails=True)
    up = upstream(dials, "one:1")

    for second in range(5):
        up.handle_timer(second * DIAL_SECONDS)

    assert len(dials.made) == 5
    assert caplog.messages == ["cannot reach the master: there is no such host"]
    assert up.complaint == caplog.messages[0]


def test_where_it_ends_nothing_is_dialled_any_more() -> None:
    dials = Dials()
    up = upstream(dials, "one:1")
    up.handle_timer(0.0)

    up.end(0, "the test is over", 1.0)
    up.handle_timer(100.0)

    assert up.link is None
    assert len(dials.made) == 1
