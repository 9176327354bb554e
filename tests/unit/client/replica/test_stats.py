"""The numbers of a session."""

from dataclasses import fields

from gradwire.replica.stats import SessionStats, Statistic, Tally


def test_a_tally_begins_at_zero() -> None:
    tally = Tally()

    assert {f.name: getattr(tally, f.name) for f in fields(tally)} == {
        "steps": 0,
        "steps_deferred": 0,
        "steps_untrained": 0,
        "steps_waited": 0,
        "updates_sent": 0,
        "updates_applied": 0,
        "updates_conflated": 0,
        "buffers_averaged": 0,
        "elements_sent": 0,
        "bytes_encoded": 0,
        "elements_clipped": 0,
        "magnitude_clipped": 0.0,
        "density": 0.0,
        "threshold": 0.0,
        "encode_seconds": 0.0,
        "apply_seconds": 0.0,
        "momentum": None,
        "scale": 1.0,
        "wait_seconds": 0.0,
    }


def test_what_is_tallied_is_among_the_numbers_by_the_same_name() -> None:
    tally = Tally(steps=3, encode_seconds=0.5)

    assert tally.counts() == {field.name: getattr(tally, field.name) for field in fields(Tally)}
    assert tally.counts()["steps"] == 3
    assert issubclass(SessionStats, Tally)


def test_every_number_says_what_it_is() -> None:
    for field in fields(SessionStats):
        assert field.metadata[Statistic].text.endswith("."), field.name
