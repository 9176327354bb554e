"""How long own updates take to arrive, as far as that says something about the line."""

from gradwire.worker.membership import Membership
from gradwire.worker.own_updates import OwnUpdates
from gradwire.worker.update_log import OwnUpdate


def posted(*times: float) -> tuple[OwnUpdates, Membership]:
    """Return what an owner has that posted updates of ten bytes at these times."""
    membership = Membership(1)
    own = OwnUpdates(membership)
    for sequence, now in enumerate(times, 1):
        update = OwnUpdate(sequence, 0, bytes(10), 0, 0)
        own.log.append(update)
        own.note_posted(update, now)
    return own, membership


def test_it_is_the_time_from_posting_to_the_acknowledgement() -> None:
    own, membership = posted(1.0, 2.0)

    own.on_delivered(2, 2.25)
    own.on_delivered(1, 3.0)

    assert membership.take_arrivals() == [(10, 0.25), (10, 2.0)]
    assert membership.take_arrivals() == []


def test_a_lost_connection_in_between_says_nothing_about_the_line() -> None:
    own, membership = posted(1.0, 2.0, 3.0)
    own.on_delivered(2, 2.5)  # by a master that is lost with it
    membership.take_arrivals()
    own.accepted = 1
    own.on_delivered_up_to(1)

    assert [update.sequence for update in own.missing()] == [2, 3]
    own.on_delivered(2, 90.0)
    own.on_delivered(3, 90.0)

    assert membership.take_arrivals() == []
    assert membership.updates_delivered == 3


def test_what_a_master_lacks_is_based_on_no_more_than_it_has() -> None:
    own = OwnUpdates(Membership(1))
    for sequence, based_on in ((1, 2), (2, 5)):
        update = OwnUpdate(sequence, based_on, bytes(10), 0, 0)
        own.log.append(update)
        own.note_posted(update, 1.0)
    own.based_on_max = 3

    assert [update.based_on for update in own.missing()] == [2, 3]
