"""The membership: what the network half of a worker notes, and its training half reads."""

import pytest

from gradwire.errors import ConnectionLostError, ProtocolError
from gradwire.worker.inbox import Rebase
from gradwire.worker.membership import Clocks, Membership
from gradwire.worker.sums import Sum
from gradwire.worker.update_log import OwnUpdate
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.replicas import Blocks
from gradwire_protocol.messages.updates import Span
from support.wording import naming

ELEMENTS = 6


@pytest.fixture
def membership() -> Membership:
    return Membership(ELEMENTS)


@pytest.mark.parametrize("first", [ConnectionLostError("the first"), None])
def test_the_first_reason_counts_also_where_the_end_was_wanted(
    membership: Membership, first: ConnectionLostError | None
) -> None:
    membership.on_closed(first)
    membership.on_closed(ConnectionLostError("the second"))

    assert membership.closed
    assert membership.error is first


def entries(stop: int, body: bytes, *, own: int = 0) -> Sum:
    """Return two updates, of rank 0 and of our rank 1; so many of them are ours."""
    span = Span(stop - 2, {0: stop, 1: own}, 2, 1, {}, {0: 70, 1: 80}, {0: 7, 1: 8})
    mine = [OwnUpdate(1 + i, 0, b"") for i in range(own)]
    return Sum(stop, [body], span, {0: stop - 2 + own, 1: 0}, mine, 1)


def test_entries_of_no_use_end_it(membership: Membership) -> None:
    for stop in (2, 4, 6):  # more than the inbox keeps without looking inside
        membership.on_entries(entries(stop, b"?" * (8 * MIB)))

    assert membership.closed
    assert isinstance(membership.error, ProtocolError)
    assert str(membership.error) == naming("master", "relayed")


def test_of_entries_what_is_ours_is_neither_counted_nor_told(membership: Membership) -> None:
    membership.on_entries(entries(2, b"", own=1))

    assert membership.updates_received == 1
    assert membership.clocks.latest == {0: 70}
    assert membership.clocks.paces == {0: 7}


def test_what_comes_after_a_replica_on_its_way_waits_for_it(membership: Membership) -> None:
    before, after = entries(4, b"before it"), entries(6, b"after it")
    blocks = Blocks(4, {0: 4}, bytes(8))

    membership.on_resync(4)
    membership.on_entries(before)
    membership.on_entries(after)
    taken_before = membership.inbox.take_all()
    rebase = Rebase(blocks, {}, missed=True)
    membership.on_resumed(rebase)
    taken_after = membership.inbox.take_all()

    assert taken_before.updates == [before]
    assert (taken_after.rebase, taken_after.updates) == (rebase, [after])


def test_a_replica_that_does_not_come_any_more_takes_nothing_apart(
    membership: Membership,
) -> None:
    membership.on_resync(2)
    membership.on_lost("the cable")
    membership.on_entries(entries(4, b"after it"))

    assert [each.stop for each in membership.inbox.take_all().updates] == [4]


def test_the_first_clock_that_is_heard_is_kept() -> None:
    clocks = Clocks()
    clocks.hear({})
    before = clocks.first
    clocks.hear({1: 5, 2: 7})
    clocks.hear({1: 9})

    assert (before, clocks.first) == (0, 7)
    assert clocks.latest == {1: 9, 2: 7}
