"""The numbers of a session."""

from dataclasses import fields

from gradwire.stats import RECENT, SessionStats, Tally


def test_a_tally_begins_at_zero() -> None:
    tally = Tally()

    assert {f.name: getattr(tally, f.name) for f in fields(tally) if f.name != "staleness"} == {
        "steps": 0,
        "steps_deferred": 0,
        "updates_sent": 0,
        "updates_applied": 0,
        "updates_conflated": 0,
        "elements_sent": 0,
        "bytes_encoded": 0,
        "elements_clipped": 0,
        "magnitude_clipped": 0.0,
        "density": 0.0,
        "threshold": 0.0,
        "encode_seconds": 0.0,
        "apply_seconds": 0.0,
    }
    assert list(tally.staleness) == []


def test_a_tally_forgets_the_staleness_of_long_ago() -> None:
    tally = Tally()

    tally.staleness.extend(range(RECENT + 3))

    assert list(tally.staleness) == list(range(3, RECENT + 3))


def test_two_tallies_share_nothing() -> None:
    one, other = Tally(), Tally()

    one.staleness.append(1)

    assert not other.staleness


def test_whatever_is_tallied_is_among_the_numbers() -> None:
    assert {f.name for f in fields(Tally)} <= {f.name for f in fields(SessionStats)}
