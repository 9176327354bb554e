"""RunRecovery: whose replica a master takes that was started anew, and which updates it recalls."""

import pytest

from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.messages.admission import Resume
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.state import restart as module
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member
from support.members import member


def back(*resumes: Resume) -> tuple[RunRecovery, list[Member]]:
    """Return a recovery for which workers are back with these."""
    recovery = RunRecovery(5.0, 5.0)
    members = [member(resume.rank) for resume in resumes]
    recovery.returned = dict(zip(members, resumes, strict=True))
    return recovery, members


def planned(*resumes: Resume) -> tuple[RunRecovery, list[Member]]:
    """Return one whose heir is chosen."""
    recovery, members = back(*resumes)
    recovery.choose()
    recovery.plan()
    return recovery, members


def ranges(recovery: RunRecovery) -> dict[int, tuple[int, int]]:
    """Return by rank what is recalled: the sequence before the first one, and the last one."""
    return {
        rank: (each.base, each.to)
        for rank, each in recovery.recalled.items()
        if each.to > each.base
    }


def received(rank: int, sequence: int, size: int = 100) -> UpdateReceived:
    """Return an update of any contents."""
    update = EncodedUpdate(sequence, 0, bytes(size))
    message = ShapedMessage.of(rank, sequence, Kind.UPDATE, update.pack(), 1200)
    return UpdateReceived(rank, update, message, 0)


def put(recovery: RunRecovery, rank: int, first: int, last: int) -> None:
    for sequence in range(first, last + 1):
        recovery.put_update(received(rank, sequence))


def test_where_nothing_is_lost_the_most_advanced_is_the_heir() -> None:
    recovery, [first, _] = back(Resume(0, 90, {1: 50}, 2, {0: 1}), Resume(1, 50, {0: 80}, 2))

    assert recovery.gathering
    assert recovery.choose() is first
    assert not recovery.gathering


def test_who_has_what_nobody_keeps_is_the_heir_though_others_are_more_advanced() -> None:
    recovery, [_, other] = back(
        Resume(0, 90, {1: 50, 7: 3}, 3, {0: 81}), Resume(1, 50, {0: 80, 7: 4}, 3)
    )

    assert recovery.choose() is other


def test_what_others_lack_of_the_heirs_replica_is_recalled() -> None:
    recovery, [heir, _] = planned(
        Resume(0, 90, {1: 50, 7: 9}, 3, {0: 85, 7: 5}), Resume(1, 52, {0: 86, 7: 6}, 3, {1: 40})
    )

    # Of rank 1 the heir lacks two, which the other sends by itself: nobody else has them.
    assert ranges(recovery) == {0: (86, 90), 7: (6, 9)}
    asked = recovery.next_request(0)
    assert asked is not None
    assert (asked.member, asked.last) == (heir, 90)


def test_what_the_heir_lacks_of_who_is_gone_is_recalled_from_whoever_keeps_it() -> None:
    recovery, [heir, second, third] = planned(
        Resume(0, 99, {7: 3}, 4, {7: 2}),
        Resume(1, 0, {7: 5}, 4, {7: 3}),
        Resume(2, 0, {7: 6}, 4, {7: 5}),
    )
    assert recovery.heir is heir
    assert ranges(recovery)[7] == (3, 6)

    first_asked = recovery.next_request(7)
    put(recovery, 7, 4, 5)
    second_asked = recovery.next_request(7)
    put(recovery, 7, 6, 6)

    assert first_asked is not None
    assert (first_asked.member, first_asked.last) == (second, 5)
    assert second_asked is not None
    assert (second_asked.member, second_asked.last) == (third, 6)
    assert recovery.next_request(7) is None
    assert recovery.recalled[7].reached == 6


def test_who_is_asked_next_is_another_one_when_the_first_is_gone() -> None:
    recovery, [heir, second, third] = planned(
        Resume(0, 99, {7: 3}, 4), Resume(1, 0, {7: 6}, 4, {7: 3}), Resume(2, 0, {7: 5}, 4, {7: 3})
    )
    assert recovery.next_request(7) is not None
    assert recovery.pending_members == [second]
    put(recovery, 7, 4, 4)

    recovery.retain([heir, third])

    asked = recovery.next_request(7)
    assert asked is not None
    assert (asked.member, asked.last, asked.arriving.expected) == (third, 5, 5)
    assert recovery.has_asked


def test_what_is_too_much_is_dropped_if_the_replica_contains_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RECALLED_BYTES_MAX", 1_000)
    recovery, _ = planned(Resume(0, 99, {7: 20}, 3, {7: 1}), Resume(1, 0, {7: 2}, 3))

    put(recovery, 7, 3, 20)

    recalled = recovery.recalled[7]
    assert (recalled.reached, recalled.updates[-1].update.sequence) == (20, 20)
    assert recovery.bytes_recalled == sum(each.message.total for each in recalled.updates) <= 1_000
    assert [each.update.sequence for each in recalled.updates] == list(range(recalled.base + 1, 21))


def test_a_claim_to_keep_more_than_there_is_changes_nothing() -> None:
    recovery, [first, second] = planned(Resume(0, 9, {1: 5}, 2), Resume(1, 5, {0: 9}, 2, {0: 99}))

    assert recovery.kept_from(second, 0) == 10
    assert recovery.kept_from(first, 1) == 6
    assert ranges(recovery) == {}


def test_what_was_planned_for_a_lost_heir_and_what_it_said_is_forgotten_with_it() -> None:
    recovery, [heir, other] = planned(
        Resume(0, 90, {1: 50}, 2, {0: 1}), Resume(1, 50, {0: 80}, 2, {0: 70})
    )
    assert recovery.heir is heir
    recovery.contents = {0: 90, 1: 50}

    recovery.retain([other])

    assert recovery.choose() is other
    assert not recovery.contents
    assert not recovery.recalled
