"""The staleness of a worker's own updates, as it counts it."""

from gradwire.optimizer.delays import UNDELIVERED_MAX, OwnStaleness


def test_what_came_between_reading_and_being_delivered_counts() -> None:
    own = OwnStaleness()
    own.on_sent(1, known=10)
    own.on_sent(2, known=12)

    own.on_delivered(received=13)
    own.on_delivered(received=13)
    own.on_delivered(received=17)

    assert own.drain() == [3, 1, 5]
    assert own.drain() == []


def test_memory_is_bounded() -> None:
    own = OwnStaleness()
    for known in range(2 * UNDELIVERED_MAX):
        own.on_sent(1, known=known)
    for _ in range(2 * UNDELIVERED_MAX):
        own.on_delivered(received=2 * UNDELIVERED_MAX)

    assert own.drain() == list(range(UNDELIVERED_MAX, 0, -1))
