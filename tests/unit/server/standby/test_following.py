"""Following: a standby's copy of a run, in whatever order it comes."""

from collections.abc import Sequence
from itertools import permutations
from typing import TypeAlias

import numpy as np
import pytest

from gradwire_codecs import LocalFeedback, Replica
from gradwire_protocol import InvalidMessageError, ShapedMessage
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.config import RelayLimits
from gradwire_server.standby.following import EARLY_MAX, Following
from support.peer import welcome

Said: TypeAlias = Welcome | Snapshot | UpdateReceived

ELEMENTS = 6
WELCOME = welcome(9, versions={0: 4})
VALUES = np.arange(ELEMENTS, dtype="<i4")
SNAPSHOT = Snapshot(0, VALUES.tobytes())


def update(rank: int, sequence: int, body: bytes) -> UpdateReceived:
    """Return an update as it comes over a link."""
    encoded = EncodedUpdate(sequence, 0, body)
    message = ShapedMessage.of(rank, sequence, Kind.UPDATE, encoded.pack(), 1200)
    return UpdateReceived(rank, encoded, message, 0)


def bodies() -> tuple[list[bytes], Replica]:
    """Return some encoded updates, and a replica that had `VALUES` and has them all."""
    replica = Replica(VALUES.astype(np.int32), -24)
    feedback = LocalFeedback(np.zeros(ELEMENTS, np.float32), replica)
    feedback.drop_residual()
    encoded: list[bytes] = []
    for step in range(1, 4):
        feedback.parameters += np.float32(step * 2.0**-10)
        encoded += feedback.encode(2**8)
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
    assert len(encoded) == 3
    updates = [update(0, 5 + i, body) for i, body in enumerate(encoded)]
    messages: list[Said] = [WELCOME, SNAPSHOT, *updates]

    for order in permutations(messages):
        following = follow(order)

        assert following.complete
        assert following.run is not None
        assert following.run.replica.values.tobytes() == expected.values.tobytes()
        assert following.run.relay.versions == {0: 7}
        assert [segment.after for segment in following.run.relay.log] == [{0: 5}, {0: 6}, {0: 7}]


def test_what_is_no_part_of_a_run_is_refused() -> None:
    [body, *_], _ = bodies()
    cases: tuple[tuple[list[Said], str], ...] = (
        ([WELCOME, WELCOME], "Welcome for a second time"),
        ([WELCOME, SNAPSHOT, SNAPSHOT], "Snapshot after the last block"),
        ([WELCOME, update(0, 5, body), update(0, 5, body)], "update 5 of rank 0 for a second time"),
        ([WELCOME, update(0, 4, body)], "update 4 of rank 0 for a second time"),
        ([WELCOME, update(0, 5, b"nonsense")], "update 5 of rank 0: unknown format"),
        ([update(0, 5, body)] * (EARLY_MAX + 1), f"{EARLY_MAX} messages before WELCOME"),
    )
    for messages, says in cases:
        with pytest.raises(InvalidMessageError, match=says):
            follow(messages)
