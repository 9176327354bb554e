"""The relay: who is sent what, what everybody has, and who is dropped."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradwire_codecs import Update
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import Connection, ShapedMessage
from gradwire_protocol.messages.admission import Place
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import EncodedUpdate, Entries, Span, Stable
from gradwire_server.config import RelayLimits
from gradwire_server.log.segments import Segment
from gradwire_server.state.relay import Relay
from gradwire_server.state.roster import Member, Phase
from support.members import member
from support.peer import LOG

ELEMENTS = 8
MASTER = WORKERS_MAX
BODY = pack_update(Update(0, ELEMENTS, 3, np.array([1, 5], np.uint32), np.array([1, -2], np.int32)))


@pytest.fixture(autouse=True)
def handshakes_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "sender", SimpleNamespace(fragment_bytes=1_200))


class Recording(Link):
    """A link that keeps what is passed on."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.sent: list[ShapedMessage] = []

    def send_entries(self, message: ShapedMessage) -> None:
        self.sent.append(message)


class Passing:
    """A relay, and what it sends to each of its members."""

    def __init__(self, limits: RelayLimits, ranks: int) -> None:
        self.relay = Relay(ELEMENTS, limits)
        self.sent: dict[int, list[ShapedMessage]] = {}
        self.members: list[Member] = []
        for rank in range(ranks):
            self.relay.subscribe(self.enter(rank), 0.0)

    def enter(self, rank: int) -> Member:
        """Let a member in that has not been sent anything."""
        entered = member(rank)
        entered.link = Recording(entered.link.connection)
        self.sent[rank] = entered.link.sent
        self.members[rank : rank + 1] = [entered]
        return entered

    def accept(self, *ranks: int) -> None:
        """Accept an update of each rank, one after the other, in one pass."""
        for rank in ranks:
            encoded = EncodedUpdate(self.relay.next_sequence(rank), 0, BODY)
            self.relay.accept(rank, encoded, 1.0)
        self.relay.serve(1.0)

    def acknowledge(self, rank: int, now: float = 2.0) -> None:
        """Let a member acknowledge all that it was sent."""
        for message in self.sent[rank]:
            self.relay.on_delivered(self.members[rank], message.number, now)

    def spans(self, rank: int) -> list[Span]:
        """Return what is in each of the entries that a member was sent."""
        spans = [Entries.parse(message.payload).span for message in self.sent[rank]]
        return [span for span in spans if span is not None]

    def said(self, rank: int) -> list[dict[int, int]]:
        """Return the last update of each rank in each of these."""
        return [dict(span.after) for span in self.spans(rank)]


@pytest.fixture
def passing() -> Passing:
    return Passing(RelayLimits(), 3)


def test_one_update_is_sent_as_it_came_and_several_as_one_sum(passing: Passing) -> None:
    passing.accept(0)
    passing.accept(0, 1, 0)

    assert passing.said(0) == [{1: 1}], "it has its own, on both sides of this"
    assert passing.said(1) == [{0: 1}, {0: 3, 1: 1}]
    assert passing.said(2) == [{0: 1}, {0: 3, 1: 1}]
    [first, second] = passing.sent[1]
    assert Entries.parse(first.payload).body == BODY
    assert [span.updates for span in passing.spans(1)] == [1, 3]
    assert passing.sent[2] == [first, second], "members that are equally far share messages"


def test_what_all_have_is_stable(passing: Passing) -> None:
    passing.accept(0, 1)
    stable = [passing.relay.stable]
    for rank in (2, 1, 0):
        passing.acknowledge(rank)
        stable.append(passing.relay.stable)

    assert stable == [Stable(0, {}), Stable(0, {}), Stable(0, {}), Stable(2, {0: 1, 1: 1})]
    assert [passing.relay.lacks(each) for each in passing.members] == [0, 0, 0]
    assert passing.relay.unstable == 0


def test_a_standby_counts_once_it_has_the_snapshot(passing: Passing) -> None:
    standby = passing.enter(3)
    standby.observes = standby.stands_by = True
    standby.phase = Phase.SYNCING
    passing.relay.subscribe(standby, 0.0)
    passing.accept(0)
    for rank in (1, 2):
        passing.acknowledge(rank)

    assert passing.relay.stable == Stable(1, {0: 1})

    standby.move_to(Phase.LIVE)
    passing.accept(0)
    for rank in (1, 2):
        passing.acknowledge(rank)
    assert passing.relay.stable.versions == {0: 1}
    passing.acknowledge(3)
    assert passing.relay.stable == Stable(2, {0: 2})


def test_a_member_that_comes_back_gets_what_it_lacks(passing: Passing) -> None:
    relay = passing.relay
    passing.accept(0, 1, 2)
    relay.remove(passing.members[2])
    passing.accept(0)
    passing.accept(1)
    for rank in (0, 1):
        passing.acknowledge(rank)
    stable = Stable(0, relay.stable.versions)
    back = passing.enter(2)

    relay.subscribe(back, 3.0, 3)
    relay.serve(3.0)

    assert passing.said(2) == [{0: 2, 1: 2}]
    assert relay.lacks(back) == 2
    assert relay.stable == stable, "what it lacks stays stable, and no position is"
    passing.acknowledge(2)
    assert relay.lacks(back) == 0
    assert relay.stable == Stable(5, {0: 2, 1: 2, 2: 1})


def test_what_was_dropped_or_merged_with_what_is_here_cannot_be_had() -> None:
    passing = Passing(RelayLimits(log_bytes_max=1), 3)
    passing.accept(0)
    for rank in range(3):
        passing.acknowledge(rank)
    log = passing.relay.log
    for _ in range(2):
        passing.accept(0, 0)

    has = [position for position in range(6) if log.has_after(Place(log.name, position))]

    assert has == [1, 3, 5]


def test_what_another_master_accepted_is_accepted_here_too(passing: Passing) -> None:
    """So a standby's log is the same."""
    segment = Segment.of(1, 7, EncodedUpdate(1, 0, BODY, closes={0: 4, 1: 2}), None, 1.0)

    passing.relay.follow(segment)
    passing.relay.serve(1.0)

    assert passing.relay.versions == {7: 1, 0: 4, 1: 2}
    assert passing.said(1) == [{7: 1}]


def test_of_rounds_that_were_recovered_nothing_has_to_be_stable() -> None:
    """Contributions are stable with the results that they are in."""
    relay = Relay(ELEMENTS, has_rounds=True)
    result = Segment.of(1, MASTER, EncodedUpdate(1, 0, BODY, closes={0: 4}), None, 1.0)

    relay.start_from(Place(LOG, 1), {MASTER: 1, 0: 4}, [result], Stable(0, {}))
    relay.log.subscribe(1, 0.0, 0)

    assert relay.versions == {MASTER: 1, 0: 4}
    assert relay.stable == Stable(0, {})


def test_who_takes_nothing_for_too_long_is_too_slow() -> None:
    passing = Passing(RelayLimits(backlog_bytes_max=1), 3)
    for _ in range(3):
        passing.accept(0)
        passing.acknowledge(1)

    assert passing.relay.behind == [passing.members[2]]
    assert passing.relay.stalls_at(60.0) == 61.0
    assert passing.relay.too_slow(60.0, 60.0) == []
    [(slow, reason)] = passing.relay.too_slow(60.0, 62.0)
    assert slow is passing.members[2]
    assert "the limit is 60 s" in reason


def test_who_is_furthest_behind_goes_where_there_is_no_room() -> None:
    limits = RelayLimits(log_bytes_max=1, backlog_bytes_max=1, conflation_bytes_max=3_000)
    passing = Passing(limits, 3)
    for _ in range(4):
        passing.accept(0, 1)
        passing.acknowledge(0)
        passing.acknowledge(1)

    dropped = passing.relay.drop_slowest(2.0)

    assert dropped is not None
    assert dropped[0] is passing.members[2]
    assert "3000 bytes" in dropped[1]
