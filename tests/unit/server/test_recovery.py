"""Recovery: whose replica a master takes that was started anew, and who may keep its own."""

from gradwire_protocol.messages import Resume
from gradwire_server.recovery import Recovery
from gradwire_server.roster import Member
from support.members import member


def back(*resumes: Resume) -> tuple[Recovery, list[Member]]:
    """Return a recovery for which workers are back with these."""
    recovery = Recovery(5.0)
    members = [member(resume.rank) for resume in resumes]
    recovery.returned = dict(zip(members, resumes, strict=True))
    return recovery, members


def test_it_is_complete_when_all_are_back_of_whom_anyone_knows() -> None:
    recovery, [first] = back(Resume(0, 1, {}, 2))
    before = recovery.is_complete

    recovery.returned[member(1)] = Resume(1, 1, {}, 1)

    assert (before, recovery.is_complete, Recovery(5.0).is_complete) == (False, True, False)
    assert recovery.most_advanced() is first


def test_the_replica_is_taken_that_has_the_most_of_those_who_are_gone() -> None:
    recovery, [_, other] = back(Resume(0, 90, {1: 50, 7: 3}, 3), Resume(1, 50, {0: 80, 7: 4}, 3))

    assert recovery.most_advanced() is other


def test_among_those_that_have_as_much_of_them_the_most_advanced_is_taken() -> None:
    recovery, [first, _] = back(Resume(0, 90, {1: 50, 7: 3}, 3), Resume(1, 50, {0: 80, 7: 3}, 3))

    assert recovery.most_advanced() is first


def test_where_nobody_is_back_there_is_none_to_take() -> None:
    recovery, _ = back(Resume(0, 1, {}, 1))

    recovery.keep_only([])

    assert recovery.most_advanced() is None


def test_who_lacks_nothing_and_has_nothing_more_of_those_who_are_gone_keeps_its_replica() -> None:
    resumes = {
        "equal": (Resume(1, 9, {0: 5, 7: 3}, 3), True),
        "more of one that sends it again": (Resume(1, 9, {0: 6, 7: 3}, 3), True),
        "lacks an update": (Resume(1, 9, {0: 4, 7: 3}, 3), False),
        "lacks a rank": (Resume(1, 9, {0: 5}, 3), False),
        "more of one that is gone": (Resume(1, 9, {0: 5, 7: 4}, 3), False),
        "something of one that nobody else knows": (Resume(1, 9, {0: 5, 7: 3, 8: 1}, 3), False),
    }
    for why, (resume, may) in resumes.items():
        recovery, [_, other] = back(Resume(0, 5, {1: 2, 7: 3}, 3), resume)
        recovery.contents = {0: 5, 1: 2, 7: 3}

        assert recovery.may_keep_replica(other) is may, why
