"""What a parent relays, when its FEED comes late."""

import pytest

from gradwire_codecs import NOTHING
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.kinds import WORKERS_MAX, Kind
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.masters.relaying import Feed
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.config import MasterConfig
from gradwire_server.intermediary.results import Results

RANK = WORKERS_MAX + 5
OTHER = WORKERS_MAX + 6
CHARGE = 100


class Parent:
    """A connection that counts the credit which it is given back."""

    def __init__(self) -> None:
        self.released = 0

    def release(self, charge: int) -> None:
        self.released += charge


def result(sequence: int, rank: int = RANK) -> UpdateReceived:
    """Return a result as it comes."""
    update = EncodedUpdate(sequence, 0, NOTHING)
    message = ShapedMessage.of(rank, sequence, Kind.UPDATE, update.pack(), 1_000)
    return UpdateReceived(rank, update, message, CHARGE)


def begin(results: Results, up: Parent, after: int, rank: int = RANK) -> None:
    """Let FEED come, of the first peer that there is."""
    feed = Feed(
        0, 0, 0, {rank: after} if after else {}, observes=False, begins=True, run="run",
        elements=10, mode=parse_mode("sharing(merged=True)"), results=rank,
    )  # fmt: skip
    results.begin(feed, up, 0.0)  # type: ignore[arg-type]
    results.note_feed(feed)


@pytest.mark.parametrize("after", [5, 10])
def test_a_result_that_overtakes_the_next_beginning_is_kept(after: int) -> None:
    up, results = Parent(), Results(MasterConfig())
    begin(results, up, 5)

    results.receive(result(after + 1), up, 1.0)  # type: ignore[arg-type]
    begin(results, up, after)
    results.receive(result(after + 2), up, 2.0)  # type: ignore[arg-type]

    assert results.run is not None
    assert results.run.relay.versions == {RANK: after + 2}
    assert up.released == 2 * CHARGE


def test_what_is_left_of_the_run_before_is_dropped() -> None:
    up, results = Parent(), Results(MasterConfig())
    begin(results, up, 0)
    results.receive(result(1), up, 1.0)  # type: ignore[arg-type]
    results.receive(result(3), up, 1.0)  # type: ignore[arg-type]

    begin(results, up, 0, OTHER)

    assert results.run is not None
    assert results.run.relay.versions == {}
    assert up.released == 2 * CHARGE
