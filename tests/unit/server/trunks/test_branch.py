"""The connection of a worker behind a relay, as a master uses it."""

import inspect
from types import SimpleNamespace
from typing import cast

import pytest

from gradwire_protocol import Connection, InvalidMessageError, Priority, UsageError
from gradwire_protocol.connection.connection import Connection as Transport
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.relays import CLOSED, MESSAGE, Branch, Closed, Returned
from gradwire_server.trunks.branch import HELD_WINDOWS, BranchConnection, Carrier

WINDOW = 40_000


class Trunk:
    """A trunk that keeps what is sent."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []
        self.returned: list[int] = []
        connection = SimpleNamespace(
            address=("10.0.0.1", 40123), bytes_queued=0, bytes_in_flight=0, rtt=0.1, last_heard=5.0
        )
        self.link = SimpleNamespace(
            connection=connection,
            send_branch=lambda branch, priority: self.branches.append(branch),
            send=self._send,
        )
        self.branch = BranchConnection(cast("Carrier", self), 3, WINDOW, 1)

    def _send(self, said: Returned) -> None:
        assert said.branch == 3
        self.returned.append(said.charge)


@pytest.fixture
def trunk() -> Trunk:
    return Trunk()


def test_what_a_master_sends_goes_to_the_relay_and_counts_until_it_is_received(
    trunk: Trunk,
) -> None:
    branch = trunk.branch
    branch.send(1, 7, Kind.UPDATE, b"body", Priority.UPDATE)

    assert trunk.branches == [Branch(3, 0, MESSAGE, 1, 7, Kind.UPDATE, b"body")]
    assert (branch.bytes_queued, branch.bytes_in_flight, branch.message_bytes_sent) == (4, 4, 4)
    assert branch.take_receipt(1, 7)
    assert branch.bytes_queued == 0
    assert not branch.take_receipt(1, 7), "it is received once"


def test_what_waits_for_the_relay_is_not_in_flight(trunk: Trunk) -> None:
    trunk.branch.send(1, 7, Kind.UPDATE, b"body", Priority.UPDATE)
    trunk.link.connection.bytes_queued = 100

    assert trunk.branch.bytes_in_flight == 0


def test_credit_is_given_back_a_quarter_of_the_window_at_a_time(trunk: Trunk) -> None:
    branch = trunk.branch
    for _ in range(8):
        branch.hold(4_000)
        branch.release(4_000)

    assert trunk.returned == [12_000, 12_000]
    assert branch.bytes_held == 0


def test_a_worker_that_has_more_here_than_a_relay_may_pass_on_is_an_error(trunk: Trunk) -> None:
    trunk.branch.hold(HELD_WINDOWS * WINDOW)

    with pytest.raises(InvalidMessageError, match=str(HELD_WINDOWS * WINDOW)):
        trunk.branch.hold(1)


def test_one_that_is_closed_sends_nothing_any_more(trunk: Trunk) -> None:
    branch = trunk.branch
    branch.close(64, "left", 0.0)
    branch.close(64, "left", 0.0)
    branch.send(1, 7, Kind.UPDATE, b"body", Priority.UPDATE)
    branch.release(WINDOW)

    assert trunk.branches == [Branch(3, 0, CLOSED, body=Closed(64, "left").pack())]
    assert trunk.returned == []


def test_what_no_connection_can_send_is_refused(trunk: Trunk) -> None:
    with pytest.raises(UsageError):
        trunk.branch.send(2**16, 7, Kind.UPDATE, b"body", Priority.UPDATE)


def test_people_are_shown_the_relay_and_a_number(trunk: Trunk) -> None:
    assert trunk.branch.address == "10.0.0.1:40123 #3"


def test_it_has_all_that_a_master_uses_of_a_connection() -> None:
    """What is not its own would need a transport that it does not have."""
    of_the_transport = {
        "abort", "ask", "connect", "deny", "establish", "handle_timer", "is_open", "next_event",
        "next_timer", "next_train", "on_frame", "on_message", "on_too_many_forgeries",
        "on_violation", "receive", "receive_answer", "receive_reset", "receive_train",
    }  # fmt: skip
    names = {name for name, _ in inspect.getmembers(Transport) if not name.startswith("_")}

    assert names - of_the_transport <= BranchConnection.__dict__.keys()
    assert issubclass(BranchConnection, Connection)
