"""Conflation: when updates are added up, when the sum goes out, and who cannot be kept."""

import numpy as np
import pytest

from gradwire_codecs import Update
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import ShapedMessage
from gradwire_protocol.limits import MIB, charge_of
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.config import RelayLimits
from gradwire_server.state.conflation import BEHIND_BYTES_MAX
from gradwire_server.state.relay import Relay
from gradwire_server.state.roster import Member
from support.members import member
from support.wording import naming

ELEMENTS = 8
SUM_BYTES = 4 * ELEMENTS
UPDATE = Update(0, ELEMENTS, 3, np.array([1, 5], np.uint32), np.array([1, -2], np.int32))
MESSAGE = ShapedMessage.of(0, 1, Kind.UPDATE, EncodedUpdate(1, 0, pack_update(UPDATE)).pack(), 1200)
CHARGE = charge_of(MESSAGE.total)


class Rig:
    """A relay with room for so many updates under way to each member, and updates to pass on."""

    def __init__(self, room: int = 2, *, sums: int = 100) -> None:
        limits = RelayLimits(MIB, room * CHARGE, sums * SUM_BYTES)
        self.relay = Relay(ELEMENTS, limits)
        self.now = 100.0

    def accept(self, *members: Member, n: int = 1, rank: int = 0) -> None:
        for _ in range(n):
            self.now += 1.0
            sequence = self.relay.next_sequence(rank)
            self.relay.accept(rank, sequence, MESSAGE, UPDATE, members, self.now)

    def deliver(self, to: Member, *sequences: int, rank: int = 0) -> None:
        for sequence in sequences:
            self.now += 1.0
            self.relay.on_delivered(to, rank, sequence, self.now)

    def deliver_sum(self, to: Member) -> int | None:
        self.now += 1.0
        return self.relay.on_part_delivered(to, self.now)


def test_what_finds_no_room_is_added_up_and_sent_when_the_rest_has_arrived() -> None:
    rig, slow = Rig(), member(1)
    rig.accept(slow, n=5)
    backlog = slow.backlog

    assert backlog.nbytes == 2 * CHARGE
    assert [total.updates for total in backlog.sums] == [3]
    assert (len(rig.relay.conflation), rig.relay.conflation.nbytes) == (1, SUM_BYTES)
    sent = [backlog.feed]
    for sequence in (2, 1):
        rig.deliver(slow, sequence)
        sent.append(backlog.feed)
    assert sent[:2] == [None, None]
    assert sent[2] is not None
    assert (sent[2].total.before, sent[2].total.after) == ({0: 2}, {0: 5})
    assert (rig.relay.stable, rig.relay.unstable) == ({0: 2}, 3)

    assert rig.deliver_sum(slow) == 3
    assert (rig.relay.stable, rig.relay.unstable) == ({0: 5}, 0)
    assert (len(rig.relay.conflation), rig.relay.conflation.nbytes) == (0, 0)
    rig.accept(slow)
    assert (backlog.nbytes, backlog.sums) == (CHARGE, [])


def test_an_update_may_always_be_under_way_however_large_it_is() -> None:
    rig, other = Rig(0), member(1)

    rig.accept(other)
    assert other.backlog.nbytes == CHARGE
    rig.accept(other)

    assert [total.updates for total in other.backlog.sums] == [1]


def test_a_few_updates_may_follow_a_sum_and_then_there_is_the_next_one() -> None:
    room = BEHIND_BYTES_MAX // CHARGE
    rig, slow = Rig(2 * room), member(1)
    rig.accept(slow, n=2 * room + 1)
    rig.deliver(slow, *range(1, 2 * room + 1))
    first = slow.backlog.sums

    rig.accept(slow, n=room)
    assert slow.backlog.sums == first
    assert slow.backlog.nbytes == room * CHARGE
    rig.accept(slow, n=3)
    assert [total.updates for total in slow.backlog.sums] == [1, 3]
    assert rig.deliver_sum(slow) == 1
    feeds = [slow.backlog.feed]
    rig.deliver(slow, *range(2 * room + 2, 3 * room + 2))
    feeds.append(slow.backlog.feed)

    assert feeds[0] is None, "updates before it are under way"
    assert feeds[1] is not None
    assert feeds[1].total.before == {0: 3 * room + 1}
    assert rig.deliver_sum(slow) == 3
    assert rig.relay.unstable == 0


def test_where_there_is_no_room_for_a_sum_its_member_cannot_be_kept() -> None:
    rig, first, second = Rig(1, sums=1), member(1), member(2)
    rig.accept(first, second, n=3)

    assert first.backlog.drop_reason is None
    assert second.backlog.drop_reason == naming("no room", "32 bytes", "32 for all slow workers")
    assert rig.relay.conflation.nbytes == SUM_BYTES
    rig.deliver(second, 1)
    rig.accept(second)

    assert second.backlog.nbytes == 0, "it would miss what was dropped"


def test_where_the_memory_is_not_there_it_cannot_be_kept_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, slow = Rig(1), member(1)

    def refuse(elements: int) -> None:
        raise MemoryError

    monkeypatch.setattr("gradwire_server.state.conflation.Sum", refuse)
    rig.accept(slow, n=2)

    assert slow.backlog.drop_reason is not None


def test_who_would_be_sent_a_sum_out_of_range_cannot_be_kept() -> None:
    rig, slow = Rig(1), member(1)
    large = Update(0, ELEMENTS, 2**24, np.array([1], np.uint32), np.array([127], np.int32))
    rig.accept(slow)

    for sequence in (2, 3):
        rig.relay.accept(0, sequence, MESSAGE, large, [slow], rig.now)

    assert slow.backlog.drop_reason == naming("1 updates", "range")


def test_who_takes_nothing_for_too_long_has_stalled() -> None:
    rig, slow = Rig(2), member(1)
    conflation = rig.relay.conflation
    rig.accept(slow, n=2)
    assert conflation.due(60.0) is None
    rig.accept(slow, n=2)
    begun = rig.now - 1

    assert conflation.due(60.0) == begun + 60.0
    assert conflation.stalled(60.0, begun + 59.9) == []
    rig.deliver(slow, 1)  # whatever it takes counts
    assert conflation.due(60.0) == rig.now + 60.0
    rig.deliver(slow, 2)
    [(stalled, reason)] = conflation.stalled(60.0, rig.now + 60.0)

    assert stalled is slow
    assert reason == naming("2 updates", "60 s")


def test_who_is_back_gets_what_it_lacks_the_rest_of_it_as_a_sum() -> None:
    rig, back = Rig(2), member(1)
    rig.accept(n=6)

    assert rig.relay.can_catch_up({0: 1}, without=1)
    rig.relay.catch_up(back, {0: 1}, rig.now)

    assert back.backlog.nbytes == 2 * CHARGE
    assert [(total.before, total.after) for total in back.backlog.sums] == [({0: 3}, {0: 6})]
    assert rig.relay.stable == {0: 6}, "it was stable before, and is for ever"


def test_who_lacks_more_than_there_is_room_for_cannot_catch_up() -> None:
    rig = Rig(2, sums=0)
    rig.accept(n=6)

    assert rig.relay.can_catch_up({0: 4}, without=1)
    assert not rig.relay.can_catch_up({0: 3}, without=1)
    assert rig.relay.can_catch_up({}, without=0)
