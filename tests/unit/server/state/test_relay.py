"""The relay: who is sent what, what everybody has, and who is dropped."""

import numpy as np
import pytest

from gradwire_codecs import Update
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import Connection, ShapedMessage
from gradwire_protocol.messages.kinds import CONFLATED_STREAM, Kind
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.updates import Conflated, EncodedUpdate
from gradwire_server.config import RelayLimits
from gradwire_server.state.relay import Relay
from gradwire_server.state.roster import Member
from support.members import member

ELEMENTS = 8
BODY = pack_update(Update(0, ELEMENTS, 3, np.array([1, 5], np.uint32), np.array([1, -2], np.int32)))


class Recording(Link):
    """A link that keeps what is passed on."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.sent: list[ShapedMessage] = []

    def relay_update(self, message: ShapedMessage) -> None:
        self.sent.append(message)

    def relay_sum(self, message: ShapedMessage) -> None:
        self.sent.append(message)


class Passing:
    """A relay, and what it sends to each of its members."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limits: RelayLimits, ranks: int) -> None:
        self.relay = Relay(ELEMENTS, limits)
        self.sent: dict[int, list[ShapedMessage]] = {}
        self.members: list[Member] = []
        monkeypatch.setattr(
            "gradwire_server.log.cursor.Numbers.shaped", lambda _, *part: self._shaped(*part)
        )
        for rank in range(ranks):
            self.enter(rank)
            self.relay.subscribe(self.members[rank], 0.0)

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
            sequence = self.relay.next_sequence(rank)
            encoded = EncodedUpdate(sequence, 0, BODY)
            message = ShapedMessage.of(rank, sequence, Kind.UPDATE, encoded.pack(), 1_200)
            self.relay.accept(rank, encoded, message, 1.0)
        self.relay.serve(1.0)

    def acknowledge(self, rank: int, now: float = 2.0) -> None:
        """Let a member acknowledge all that it was sent."""
        for message in self.sent[rank]:
            self.relay.on_delivered(self.members[rank], message.stream, message.number, now)

    def said(self, rank: int) -> list[tuple[int, int] | dict[int, int]]:
        """Return the names of updates that a member was sent, and the versions after each sum."""
        said: list[tuple[int, int] | dict[int, int]] = []
        for message in self.sent[rank]:
            if message.stream == CONFLATED_STREAM:
                span = Conflated.parse(message.payload).span
                assert span is not None
                said.append(dict(span.after))
            else:
                said.append((message.stream, message.number))
        return said

    def _shaped(self, part: Conflated, link: Link) -> ShapedMessage:
        number = sum(map(len, self.sent.values()))
        return ShapedMessage.of(CONFLATED_STREAM, number, Kind.CONFLATED, part.pack(), 1_200)


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    return Passing(monkeypatch, RelayLimits(), 3)


def test_one_update_is_sent_as_it_came_and_several_as_one_sum(passing: Passing) -> None:
    passing.accept(0)
    passing.accept(0, 1, 0)

    assert passing.said(0) == [(1, 1)], "it has its own"
    assert passing.said(1) == [(0, 1), {0: 3, 1: 1}], "its own is in the sum"
    assert passing.said(2) == [(0, 1), {0: 3, 1: 1}]


def test_what_all_have_is_stable(passing: Passing) -> None:
    passing.accept(0, 1)
    stable = [passing.relay.stable]
    for rank in (2, 1, 0):
        passing.acknowledge(rank)
        stable.append(passing.relay.stable)

    assert stable == [{}, {}, {}, {0: 1, 1: 1}]
    assert [passing.relay.lacks(each) for each in passing.members] == [0, 0, 0]


def test_who_comes_back_gets_what_it_lacks_as_far_as_the_log_has_it(passing: Passing) -> None:
    relay = passing.relay
    passing.accept(0, 1, 2)
    relay.remove(passing.members[2])
    passing.accept(0)
    passing.accept(1)
    back = passing.enter(2)

    assert relay.can_catch_up({0: 1, 1: 1}, without=2)
    relay.catch_up(back, {0: 1, 1: 1}, 3.0)
    relay.serve(3.0)

    assert passing.said(2) == [{0: 2, 1: 2}]


def test_who_keeps_its_own_no_more_gets_no_sum_with_them(passing: Passing) -> None:
    relay = passing.relay
    relay.remove(passing.members[2])
    passing.accept(0, 2, 1, 2, 0)
    back = passing.enter(2)

    relay.catch_up(back, {}, 3.0, kept_from=2)
    relay.serve(3.0)

    assert passing.said(2) == [(0, 1), (1, 1), (0, 2)]


def test_versions_that_are_no_place_in_the_log_get_what_they_lack_all_the_same(
    passing: Passing,
) -> None:
    relay = passing.relay
    relay.remove(passing.members[2])
    passing.accept(0, 1, 0, 1)
    back = passing.enter(2)

    relay.catch_up(back, {1: 2}, 3.0)
    passing.accept(0)

    assert passing.said(2) == [(0, 1), (0, 2), (0, 3)]


def test_the_sum_for_who_has_gaps_is_for_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what another one lacks begins and ends at the same places."""
    passing = Passing(monkeypatch, RelayLimits(backlog_bytes_max=1), 4)
    relay = passing.relay
    for rank in (2, 3):
        relay.remove(passing.members[rank])
    passing.accept(0, 1, 0, 1, 0)
    has = {2: {1: 1}, 3: {1: 2}}

    for rank, versions in has.items():
        relay.catch_up(passing.enter(rank), versions, 3.0)

    assert [passing.said(rank) for rank in has] == [[{0: 3, 1: 2}], [{0: 3}]]
    spans = [Conflated.parse(passing.sent[rank][0].payload).span for rank in has]
    assert [span and span.before for span in spans] == [{0: 0, 1: 1}, {0: 0, 1: 2}]


def test_what_was_dropped_or_merged_with_what_is_here_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing = Passing(monkeypatch, RelayLimits(log_bytes_max=1), 3)
    passing.accept(0)
    for rank in range(3):
        passing.acknowledge(rank)
    passing.accept(0, 1)
    passing.accept(0, 1)

    assert not passing.relay.can_catch_up({}, without=2)
    assert not passing.relay.can_catch_up({0: 2}, without=2)
    assert passing.relay.can_catch_up({0: 1}, without=2)


def test_who_takes_nothing_for_too_long_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    passing = Passing(monkeypatch, RelayLimits(backlog_bytes_max=1), 3)
    for _ in range(3):
        passing.accept(0)
        passing.acknowledge(1)

    assert passing.relay.behind == [passing.members[2]]
    assert passing.relay.stalls_at(60.0) == 61.0
    assert passing.relay.too_slow(60.0, 60.0) == []
    [(slow, reason)] = passing.relay.too_slow(60.0, 62.0)
    assert slow is passing.members[2]
    assert "the limit is 60 s" in reason


def test_who_is_furthest_behind_goes_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = RelayLimits(log_bytes_max=1, backlog_bytes_max=1, conflation_bytes_max=3_000)
    passing = Passing(monkeypatch, limits, 3)
    for _ in range(4):
        passing.accept(0, 1)
        passing.acknowledge(0)
        passing.acknowledge(1)

    dropped = passing.relay.drop_slowest()

    assert dropped is not None
    assert dropped[0] is passing.members[2]
    assert "3000 bytes" in dropped[1]
