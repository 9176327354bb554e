"""The membership: what the network half of a worker notes, and its training half reads."""

import pytest

from gradwire.errors import ConnectionLostError, ProtocolError
from gradwire.worker.membership import Clocks, Membership
from gradwire.worker.sums import Sum
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.updates import EncodedUpdate, Span
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


def test_a_relayed_update_of_no_use_ends_it(membership: Membership) -> None:
    nonsense = EncodedUpdate(1, 0, b"?" * (8 * MIB))

    for _ in range(3):  # more than the inbox keeps without looking inside
        membership.on_update(0, nonsense)

    assert membership.closed
    assert isinstance(membership.error, ProtocolError)
    assert str(membership.error) == naming("master", "relayed")


def test_a_part_of_a_sum_that_is_no_update_ends_it(membership: Membership) -> None:
    for _ in range(3):  # more than the inbox keeps without looking inside
        membership.on_sum(Sum((b"?" * (8 * MIB),), Span({0: 0}, {0: 3}, 3, 1, {})))

    assert membership.closed
    assert isinstance(membership.error, ProtocolError)


def test_the_first_clock_that_is_heard_is_kept() -> None:
    clocks = Clocks()
    clocks.hear({})
    before = clocks.first
    clocks.hear({1: 5, 2: 7})
    clocks.hear({1: 9})

    assert (before, clocks.first) == (0, 7)
    assert clocks.latest == {1: 9, 2: 7}
