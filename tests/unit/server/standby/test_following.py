"""Following: a standby's copy of a run, in whatever order it comes."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
import pytest

from gradwire_codecs import LocalFeedback, Replica, decode
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merging import merge
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.link import EntriesReceived
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import Entries, Span
from gradwire_server.config import RelayLimits
from gradwire_server.standby.following import EARLY_MAX, Following
from support.peer import welcome

Said: TypeAlias = Welcome | Snapshot | EntriesReceived

ELEMENTS = 6
WELCOME = welcome(9, versions={0: 4})
VALUES = np.arange(ELEMENTS, dtype="<i4")
SNAPSHOT = Snapshot(0, VALUES.tobytes())


def entries(start: int, stop: int, body: bytes, **others: Any) -> EntriesReceived:
    """Return entries of rank 0 as they come over a link: the last or the only part."""
    span = Span(start, {0: stop}, stop - start, others.pop("parts", 1), {0: 0}, **others)
    return EntriesReceived(Entries(stop, body, span), stop)


def bodies() -> tuple[list[bytes], Replica]:
    """Return some encoded updates, and a replica that had `VALUES` and has them all."""
    replica = Replica(VALUES.astype(np.int32), -24)
    feedback = LocalFeedback(np.zeros(ELEMENTS, np.float32), replica)
    feedback.drop_residual()
    encoded: list[bytes] = []
    for step in range(1, 4):
        feedback.parameters += np.float32(step * 2.0**-10)
        encoded += feedback.encode(2**8)
    assert len(encoded) == 3
    return encoded, replica


def follow(messages: Sequence[Said]) -> Following:
    following = Following(RelayLimits())
    for message in messages:
        if isinstance(message, Welcome):
            following.begin(message, 0.0)
        else:
            following.receive(message, 0.0)
    return following


def test_in_whatever_order_it_comes_the_copy_is_the_same() -> None:
    encoded, expected = bodies()
    updates = [entries(4 + i, 5 + i, body) for i, body in enumerate(encoded)]
    messages: list[Said] = [WELCOME, SNAPSHOT, *updates]

    for order in permutations(messages):
        following = follow(order)

        assert following.complete
        assert following.run is not None
        assert following.run.replica.values.tobytes() == expected.values.tobytes()
        relay = following.run.relay
        assert relay.versions == relay.log.versions == {0: 7}
        assert (relay.log.name, relay.log.head) == (WELCOME.place.log, 7)
        assert [segment.after for segment in relay.log] == [{0: 5}, {0: 6}, {0: 7}]


def test_sums_and_their_parts_make_the_same_copy() -> None:
    encoded, expected = bodies()
    total = merge([decode(body, ELEMENTS) for body in encoded], ELEMENTS)
    assert total is not None
    halves = [
        pack_update(type(total)(0, ELEMENTS, total.multiple, total.index[half], total.count[half]))
        for half in (slice(None, 3), slice(3, None))
    ]
    part = EntriesReceived(Entries(7, halves[0], None), 1)
    last = entries(4, 7, halves[1], parts=2)

    messages: list[Said] = [WELCOME, SNAPSHOT, part, last]

    for order in permutations(messages):
        following = follow(order)

        assert following.run is not None
        assert following.run.replica.values.tobytes() == expected.values.tobytes()
        [segment] = following.run.relay.log
        assert (segment.start, segment.stop, segment.updates_without(0)) == (4, 7, 0)


def test_of_a_rank_that_is_new_it_counts_all_updates_of_a_sum() -> None:
    [body, *_], _ = bodies()
    span = Span(4, {0: 5, 3: 2}, 3, 1, {0: 0, 3: 0})

    following = follow([WELCOME, SNAPSHOT, EntriesReceived(Entries(7, body, span), 0)])

    assert following.run is not None
    [segment] = following.run.relay.log
    assert segment.counts == {0: 1, 3: 2}


def test_what_is_no_part_of_a_run_is_refused() -> None:
    [body, *_], _ = bodies()
    cases: tuple[tuple[list[Said], str], ...] = (
        ([WELCOME, WELCOME], "Welcome for a second time"),
        ([WELCOME, SNAPSHOT, SNAPSHOT], "Snapshot after the last block"),
        ([WELCOME, entries(5, 6, body), entries(5, 6, body)], "second last part"),
        ([WELCOME, entries(4, 5, body), entries(4, 5, body)], "from 4 to 5; it is here up to 5"),
        ([WELCOME, entries(4, 5, b"nonsense")], "log up to 5: unknown format"),
        ([entries(4, 5, body)] * (EARLY_MAX + 1), f"{EARLY_MAX} messages before WELCOME"),
    )
    for messages, says in cases:
        with pytest.raises(InvalidMessageError, match=says):
            follow(messages)
