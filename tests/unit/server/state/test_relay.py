"""The relay: what was accepted, who has it, and when everybody does."""

from collections.abc import Mapping
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update, decode
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.state.relay import Relay
from support.members import member

ELEMENTS = 8
BODY = pack_update(Update(0, ELEMENTS, 3, np.array([1, 5], np.uint32), np.array([1, -2], np.int32)))
DECODED = decode(BODY, ELEMENTS)
UPDATE = ShapedMessage.of(0, 1, Kind.UPDATE, EncodedUpdate(1, 0, BODY).pack(), 1200)
NOW = 20.0


def test_a_delivery_counts_once() -> None:
    relay, first, second = Relay(ELEMENTS), member(1), member(2)
    relay.accept(0, 1, UPDATE, DECODED, [first, second], 5.0)

    assert relay.on_delivered(first, 0, 1, NOW) == 5.0
    assert relay.on_delivered(first, 0, 1, NOW) is None
    assert relay.on_delivered(first, 7, 7, NOW) is None

    assert relay.unstable == 1


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
