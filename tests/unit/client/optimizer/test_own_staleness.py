"""The staleness of a worker's own updates, as it counts it."""

from gradwire.optimizer.own_staleness import UNDELIVERED_MAX, OwnStaleness


def test_what_came_between_reading_and_being_delivered_counts() -> None:
    own = OwnStaleness()
    own.sent(1, known=10)
    own.sent(2, known=12)

    own.delivered(received=13)
    own.delivered(received=13)
    own.delivered(received=17)

    assert own.take_found() == [3, 1, 5]
    assert own.take_found() == []


def test_what_nobody_sent_is_not_counted() -> None:
    own = OwnStaleness()

    own.delivered(received=4)

    assert own.take_found() == []


def test_an_update_that_was_there_at_once_was_not_stale() -> None:
    own = OwnStaleness()
    own.sent(1, known=5)

    own.delivered(received=4)

    assert own.take_found() == [0]


def test_memory_is_bounded() -> None:
    own = OwnStaleness()
    for known in range(2 * UNDELIVERED_MAX):
        own.sent(1, known=known)
    for _ in range(2 * UNDELIVERED_MAX):
        own.delivered(received=2 * UNDELIVERED_MAX)

    assert own.take_found() == list(range(UNDELIVERED_MAX, 0, -1))
