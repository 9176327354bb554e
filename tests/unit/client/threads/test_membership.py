"""The membership: what one thread learns and another one waits for."""

from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest

from gradwire.errors import ConnectionLostError, ProtocolError
from gradwire.threads.membership import Membership
from gradwire.worker.peer_sequences import Sum
from gradwire_codecs import Replica, encode
from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.admission import Peer, Welcome
from gradwire_protocol.messages.updates import EncodedUpdate
from support.peer import LAYOUT
from support.waiting import wait_until
from support.wording import naming

ELEMENTS = 6
FOREVER = 3_600.0

WELCOME = Welcome(
    run="default",
    rank=1,
    sequence=0,
    quantum_exponent=-24,
    layout=LAYOUT,
    roster=(Peer(0, "a", False), Peer(1, "b", False)),
    founder=False,
    versions={},
)


@pytest.fixture
def membership() -> Membership:
    return Membership(ELEMENTS)


def update(sequence: int = 1) -> EncodedUpdate:
    [body] = encode(np.ones(ELEMENTS, np.float32), Replica.zeros(ELEMENTS), threshold=1.0)
    return EncodedUpdate(sequence, 0, body)


def test_a_condition_that_holds_is_not_waited_for(membership: Membership) -> None:
    assert membership.wait(lambda: True, 0.0)
    assert membership.wait(lambda: True, -1.0)


def test_a_condition_that_does_not_hold_is_waited_for_until_the_deadline(
    membership: Membership,
) -> None:
    assert not membership.wait(lambda: False, 0.0)
    assert not membership.wait(lambda: False, 0.01)


@pytest.mark.parametrize(
    ("tell", "condition"),
    [
        (lambda m: m.on_welcome(WELCOME), lambda m: m.welcome is WELCOME and len(m.peers) == 2),
        (lambda m: m.on_live(memoryview(bytearray(b"S"))), lambda m: m.live and m.snapshot == b"S"),
        (lambda m: m.on_update(0, update()), lambda m: m.updates_received == 1),
        (
            lambda m: m.on_sum(Sum((update().body,), {0: 3}, 3)),
            lambda m: m.updates_received == 3,
        ),
        (lambda m: m.on_delivered(7), lambda m: (m.updates_delivered, m.bytes_delivered) == (1, 7)),
        (lambda m: m.on_roster([Peer(0, "a", True)]), lambda m: m.peers == [Peer(0, "a", True)]),
        (lambda m: m.on_finished({0: 3}), lambda m: m.finished == {0: 3}),
        (lambda m: m.on_closed(None), lambda m: m.closed),
    ],
    ids=["welcome", "live", "update", "sum", "delivered", "roster", "finished", "closed"],
)
def test_whatever_is_told_wakes_the_one_who_waits_for_it(
    membership: Membership,
    tell: Callable[[Membership], None],
    condition: Callable[[Membership], bool],
) -> None:
    asked: list[bool] = []
    answers: list[bool] = []

    def ask() -> bool:
        asked.append(condition(membership))
        return asked[-1]

    thread = Thread(target=lambda: answers.append(membership.wait(ask, FOREVER)))
    thread.start()
    wait_until(lambda: asked, "the first look at the condition")

    tell(membership)
    thread.join(10.0)

    assert asked[0] is False
    assert answers == [True]


def test_a_membership_that_is_closed_is_not_waited_for(membership: Membership) -> None:
    membership.on_closed(None)

    assert not membership.wait(lambda: False, FOREVER)
    assert membership.wait(lambda: True, FOREVER)


def test_who_waits_when_it_is_closed_waits_no_longer(membership: Membership) -> None:
    asked: list[bool] = []
    answers: list[bool] = []

    def ask() -> bool:
        asked.append(True)
        return False

    thread = Thread(target=lambda: answers.append(membership.wait(ask, FOREVER)))
    thread.start()
    wait_until(lambda: asked, "the first look at the condition")

    membership.on_closed(None)
    thread.join(10.0)

    assert answers == [False]


def test_the_first_reason_counts(membership: Membership) -> None:
    first = ConnectionLostError("the first")

    membership.on_closed(first)
    membership.on_closed(ConnectionLostError("the second"))

    assert membership.closed
    assert membership.error is first


def test_an_end_that_was_wanted_stays_without_an_error(membership: Membership) -> None:
    membership.on_closed(None)
    membership.on_closed(ConnectionLostError("too late"))

    assert membership.error is None


def test_updates_wait_in_the_inbox(membership: Membership) -> None:
    membership.on_update(0, update(1))
    membership.on_update(2, update(1))

    assert membership.inbox.take().updates == [(0, update(1)), (2, update(1))]
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


def test_a_relayed_update_of_no_use_ends_it() -> None:
    membership = Membership(ELEMENTS)
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

    assert membership.inbox.take().conflated is None
