"""The relay: what was accepted, who has it, and when everybody does."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Role, ShapedMessage
from gradwire_protocol.messages import EncodedUpdate, Kind
from gradwire_server.relay import Relay
from support.members import member

UPDATE = ShapedMessage.of(0, 1, Kind.UPDATE, b"an update", 1200)


def test_an_update_is_unstable_until_every_destination_has_it() -> None:
    relay, first, second = Relay(), member(1), member(2)

    relay.accept(0, 1, UPDATE, [first, second], 10.0)
    assert (relay.versions, relay.stable, relay.unstable) == ({0: 1}, {0: 0}, 1)
    assert relay.on_delivered(first, 0, 1) == 10.0
    assert (relay.stable, relay.unstable) == ({0: 0}, 1)
    assert relay.on_delivered(second, 0, 1) == 10.0

    assert (relay.versions, relay.stable, relay.unstable) == ({0: 1}, {0: 1}, 0)


def test_a_clipped_update_is_stable_when_its_origin_has_the_correction() -> None:
    relay, origin, other = Relay(), member(0), member(1)
    origin.clipped = True

    relay.accept_clipped(
        origin, EncodedUpdate(1, 0, b"less"), EncodedUpdate(1, 0, b"rest"), [other], 10.0
    )
    relay.on_delivered(other, 0, 1)
    assert (relay.versions, relay.stable) == ({0: 1}, {0: 0})
    assert (origin.lacks_correction, other.lacks_correction) == (True, False)
    relay.on_delivered(origin, 0, 1)

    assert (relay.versions, relay.stable) == ({0: 1}, {0: 1})
    assert not origin.lacks_correction


def test_what_a_checkpoint_contains_is_stable_and_its_ranks_go_on_there() -> None:
    relay = Relay()
    relay.go_on_from({0: 3, 5: 2**32 - 2})
    assert not relay.log.reaches_back_to({0: 2, 5: 2**32 - 2}, without=9)
    assert (relay.stable, relay.unstable) == ({0: 3, 5: 2**32 - 2}, 0)
    assert [relay.next_of(rank) for rank in (0, 1, 5)] == [4, 1, 2**32 - 1]

    other = member(1)
    relay.accept(0, 4, UPDATE, [other], 1.0)
    assert (relay.stable[0], relay.unstable) == (3, 1)
    relay.on_delivered(other, 0, 4)

    assert (relay.versions[0], relay.stable[0], relay.unstable) == (4, 4, 0)


def test_an_update_that_goes_to_nobody_is_stable_at_once() -> None:
    relay = Relay()

    relay.accept(3, 1, UPDATE, [], 0.0)
    relay.accept(3, 2, UPDATE, [], 0.0)

    assert (relay.versions, relay.stable, relay.unstable) == ({3: 2}, {3: 2}, 0)


def test_a_later_update_is_not_stable_before_the_earlier_ones_are() -> None:
    relay, other = Relay(), member(1)
    for sequence in (1, 2, 3):
        relay.accept(0, sequence, UPDATE, [other], 0.0)

    relay.on_delivered(other, 0, 3)
    relay.on_delivered(other, 0, 2)
    assert (relay.stable, relay.unstable) == ({0: 0}, 3)
    relay.on_delivered(other, 0, 1)

    assert (relay.stable, relay.unstable) == ({0: 3}, 0)


def test_a_delivery_counts_once() -> None:
    relay, first, second = Relay(), member(1), member(2)
    relay.accept(0, 1, UPDATE, [first, second], 5.0)

    assert relay.on_delivered(first, 0, 1) == 5.0
    assert relay.on_delivered(first, 0, 1) is None
    assert relay.on_delivered(first, 7, 7) is None

    assert relay.unstable == 1


def test_nobody_waits_for_a_worker_that_is_gone() -> None:
    relay, staying, leaving = Relay(), member(1), member(2)
    for sequence in (1, 2):
        relay.accept(0, sequence, UPDATE, [staying, leaving], 0.0)
    relay.on_delivered(staying, 0, 1)

    relay.remove(leaving)

    assert leaving.unacknowledged == {}
    assert (relay.stable, relay.unstable) == ({0: 1}, 1)
    relay.on_delivered(staying, 0, 2)
    assert (relay.stable, relay.unstable) == ({0: 2}, 0)


def test_origins_do_not_wait_for_each_other() -> None:
    relay, other = Relay(), member(2)
    relay.accept(0, 1, UPDATE, [other], 0.0)
    relay.accept(1, 1, UPDATE, [other], 0.0)

    relay.on_delivered(other, 1, 1)

    assert (relay.versions, relay.stable) == ({0: 1, 1: 1}, {0: 0, 1: 1})


def test_a_rank_that_is_used_again_goes_on_where_it_ended() -> None:
    relay, other = Relay(), member(1)
    origin = member(0)
    relay.accept(origin.rank, 1, UPDATE, [other], 0.0)
    relay.remove(origin)

    relay.accept(0, 2, UPDATE, [other], 0.0)
    relay.on_delivered(other, 0, 1)
    relay.on_delivered(other, 0, 2)

    assert (relay.versions, relay.stable) == ({0: 2}, {0: 2})


@given(
    workers=st.integers(1, 5),
    origins=st.lists(st.integers(0, 4), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_in_whatever_order_deliveries_come_and_workers_go_all_becomes_stable(
    workers: int, origins: list[int], order: Random
) -> None:
    relay = Relay()
    members = [member(rank) for rank in range(workers)]
    for origin in origins:
        sequence = relay.versions.get(origin, 0) + 1
        others = [m for m in members if m.rank != origin]
        relay.accept(origin, sequence, UPDATE, others, 0.0)
    events = [(m, name) for m in members for name in (*m.unacknowledged, None)]
    order.shuffle(events)

    for each, name in events:
        before = relay.stable
        if name is None:
            relay.remove(each)
        else:
            relay.on_delivered(each, *name)
        assert all(relay.stable[rank] >= sequence for rank, sequence in before.items())
        assert relay.unstable == len(
            {
                (rank, later)
                for m in members
                for rank, sequence in m.unacknowledged
                for later in range(sequence, relay.versions[rank] + 1)
            }
        )

    assert relay.stable == relay.versions
    assert relay.unstable == 0


def test_nobody_waits_for_an_observer() -> None:
    relay, worker = Relay(), member(1)
    observer = member(9, key_name="eyes", role=Role.OBSERVER)

    relay.accept(0, 1, UPDATE, [worker, observer], 10.0)
    relay.on_delivered(worker, 0, 1)
    stable = relay.stable
    relay.accept(0, 2, UPDATE, [observer], 11.0)

    assert (stable, relay.stable) == ({0: 1}, {0: 2})
    assert relay.on_delivered(observer, 0, 1) is None
