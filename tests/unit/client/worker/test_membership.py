"""The membership: what the network half of a worker notes, and its training half reads."""

from typing import Any

import numpy as np
import pytest

from gradwire.errors import ConnectionLostError, ProtocolError
from gradwire.worker.membership import Membership
from gradwire.worker.peer_sequences import Sum
from gradwire_codecs import Replica, encode
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.updates import EncodedUpdate
from support.wording import naming

ELEMENTS = 6


@pytest.fixture
def membership() -> Membership:
    return Membership(ELEMENTS)


def update(sequence: int = 1) -> EncodedUpdate:
    [body] = encode(np.ones(ELEMENTS, np.float32), Replica.zeros(ELEMENTS), threshold=1.0)
    return EncodedUpdate(sequence, 0, body)


@pytest.mark.parametrize("first", [ConnectionLostError("the first"), None])
def test_the_first_reason_counts_also_where_the_end_was_wanted(
    membership: Membership, first: ConnectionLostError | None
) -> None:
    membership.on_closed(first)
    membership.on_closed(ConnectionLostError("the second"))

    assert membership.closed
    assert membership.error is first


def test_updates_wait_in_the_inbox(membership: Membership) -> None:
    membership.on_update(0, update(1))
    membership.on_update(2, update(1))

    assert membership.inbox.take_all().updates == [(0, update(1)), (2, update(1))]
    assert membership.updates_received == 2


def test_deliveries_add_up(membership: Membership) -> None:
    membership.on_delivered(100)
    membership.on_delivered(23)

    assert (membership.updates_delivered, membership.bytes_delivered) == (2, 123)


def test_progress_and_stable_versions_are_kept(membership: Membership) -> None:
    membership.on_snapshot_progress(4)
    membership.on_stable({0: 1, 2: 5})

    assert membership.snapshot_elements == 4
    assert membership.stable == {0: 1, 2: 5}


def test_a_relayed_update_of_no_use_ends_it(membership: Membership) -> None:
    nonsense = EncodedUpdate(1, 0, b"?" * (8 * MIB))

    for _ in range(3):  # more than the inbox keeps without looking inside
        membership.on_update(0, nonsense)

    assert membership.closed
    assert isinstance(membership.error, ProtocolError)
    assert str(membership.error) == naming("master", "relayed")


def test_a_part_of_a_sum_that_is_no_update_ends_it(membership: Membership) -> None:
    membership.on_sum(Sum((b"no update",), {0: 3}, 3))

    assert membership.closed
    assert isinstance(membership.error, ProtocolError)


def test_a_sum_that_comes_while_another_replica_does_is_for_that_one(
    membership: Membership,
) -> None:
    membership.on_resync({})

    membership.on_sum(Sum((update().body,), {0: 3}, 3))

    assert membership.inbox.take_all().conflated is None


# A master that is about to end.


def test_who_sends_nothing_complies_at_once(membership: Membership) -> None:
    posted = posted_by(membership)

    membership.on_stopping("maintenance")

    assert posted == [("comply", "maintenance")]


def test_what_is_being_encoded_is_handed_over_before_it_complies(membership: Membership) -> None:
    posted = posted_by(membership)

    with membership.sending() as may_send:
        assert may_send
        membership.on_stopping("maintenance")
        membership.post("push")

    assert posted == [("push",), ("comply", "maintenance")]
    with membership.sending() as may_send:
        assert not may_send


def posted_by(membership: Membership) -> list[tuple[Any, ...]]:
    """Return a list of what is posted from now on."""
    posted: list[tuple[Any, ...]] = []
    membership.post = lambda *call: posted.append(call)
    membership.comply = "comply"  # type: ignore[assignment]
    return posted
