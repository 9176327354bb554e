"""The relay: what was accepted, who has it, and when everybody does."""

from collections.abc import Mapping
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update, decode
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import Role, ShapedMessage
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.state.relay import Relay
from support.members import member

ELEMENTS = 8
BODY = pack_update(Update(0, ELEMENTS, 3, np.array([1, 5], np.uint32), np.array([1, -2], np.int32)))
DECODED = decode(BODY, ELEMENTS)
UPDATE = ShapedMessage.of(0, 1, Kind.UPDATE, EncodedUpdate(1, 0, BODY).pack(), 1200)
NOW = 20.0


def test_a_clipped_update_is_stable_when_its_origin_has_the_correction() -> None:
    relay, origin, other = Relay(ELEMENTS), member(0), member(1)
    origin.clipped = True

    relay.accept_clipped(
        origin,
        EncodedUpdate(1, 0, b"less"),
        DECODED,
        EncodedUpdate(1, 0, b"rest"),
        [other],
        10.0,
    )
    relay.on_delivered(other, 0, 1, NOW)
    assert (relay.versions, relay.stable) == ({0: 1}, {0: 0})
    assert (origin.backlog.correction_bytes > 0, other.backlog.correction_bytes) == (True, 0)
    relay.on_delivered(origin, 0, 1, NOW)

    assert (relay.versions, relay.stable) == ({0: 1}, {0: 1})
    assert not origin.backlog.correction_bytes


def test_what_a_checkpoint_contains_is_stable_and_its_ranks_go_on_there() -> None:
    relay = Relay(ELEMENTS)
    relay.start_from({0: 3, 5: 2**32 - 2})
    assert not relay.log.reaches_back_to({0: 2, 5: 2**32 - 2}, without=9)
    assert (relay.stable, relay.unstable) == ({0: 3, 5: 2**32 - 2}, 0)
    assert [relay.next_sequence(rank) for rank in (0, 1, 5)] == [4, 1, 2**32 - 1]

    other = member(1)
    relay.accept(0, 4, UPDATE, DECODED, [other], 1.0)
    assert (relay.stable[0], relay.unstable) == (3, 1)
    relay.on_delivered(other, 0, 4, NOW)

    assert (relay.versions[0], relay.stable[0], relay.unstable) == (4, 4, 0)


def test_a_delivery_counts_once() -> None:
    relay, first, second = Relay(ELEMENTS), member(1), member(2)
    relay.accept(0, 1, UPDATE, DECODED, [first, second], 5.0)

    assert relay.on_delivered(first, 0, 1, NOW) == 5.0
    assert relay.on_delivered(first, 0, 1, NOW) is None
    assert relay.on_delivered(first, 7, 7, NOW) is None

    assert relay.unstable == 1


def test_a_rank_that_is_used_again_goes_on_where_it_ended() -> None:
    relay, other = Relay(ELEMENTS), member(1)
    origin = member(0)
    relay.accept(origin.rank, 1, UPDATE, DECODED, [other], 0.0)
    relay.remove(origin)

    relay.accept(0, 2, UPDATE, DECODED, [other], 0.0)
    relay.on_delivered(other, 0, 1, NOW)
    relay.on_delivered(other, 0, 2, NOW)

    assert (relay.versions, relay.stable) == ({0: 2}, {0: 2})


def names_of(versions: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the names of all updates in a version vector."""
    return [(rank, each) for rank, last in versions.items() for each in range(1, last + 1)]


@given(
    workers=st.integers(1, 5),
    origins=st.lists(st.integers(0, 4), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_in_whatever_order_deliveries_come_and_workers_go_what_everybody_has_is_stable(
    workers: int, origins: list[int], order: Random
) -> None:
    relay = Relay(ELEMENTS)
    members = [member(rank) for rank in range(workers)]
    for origin in origins:
        sequence = relay.versions.get(origin, 0) + 1
        others = [m for m in members if m.rank != origin]
        relay.accept(origin, sequence, UPDATE, DECODED, others, 0.0)
    lacking = {m: {name for name in names_of(relay.versions) if name[0] != m.rank} for m in members}
    events = [(m, name) for m in members for name in (*sorted(lacking[m]), None)]
    order.shuffle(events)

    for each, name in events:
        if name is None:
            relay.remove(each)
            lacking[each].clear()
        else:
            relay.on_delivered(each, *name, NOW)
            lacking[each].discard(name)
        everybody_has = dict(relay.versions)
        for rank, sequence in (name for m in members for name in lacking[m]):
            everybody_has[rank] = min(everybody_has[rank], sequence - 1)
        assert relay.stable == everybody_has
        assert relay.unstable == sum(relay.versions.values()) - sum(everybody_has.values())


def test_nobody_waits_for_an_observer() -> None:
    relay, worker = Relay(ELEMENTS), member(1)
    observer = member(9, key_name="eyes", role=Role.OBSERVER)

    relay.accept(0, 1, UPDATE, DECODED, [worker, observer], 10.0)
    relay.on_delivered(worker, 0, 1, NOW)
    stable = relay.stable
    relay.accept(0, 2, UPDATE, DECODED, [observer], 11.0)

    assert (stable, relay.stable) == ({0: 1}, {0: 2})
    assert relay.on_delivered(observer, 0, 1, NOW) is None
