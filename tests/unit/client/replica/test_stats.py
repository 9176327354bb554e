"""The numbers of a session."""

from dataclasses import fields

from gradwire.replica.stats import SessionStats, Statistic, Tally


def test_what_is_counted_begins_at_zero() -> None:
    tally = Tally()
    counted = [f.name for f in fields(tally) if f.metadata[Statistic].kind == "counter"]

    assert "steps" in counted
    assert {name: getattr(tally, name) for name in counted} == dict.fromkeys(counted, 0)
    assert (tally.density, tally.threshold, tally.momentum, tally.scale) == (0.0, 0.0, None, 1.0)


def test_what_is_tallied_is_among_the_numbers_by_the_same_name() -> None:
    tally = Tally(steps=3, encode_seconds=0.5)

    assert tally.counts() == {field.name: getattr(tally, field.name) for field in fields(Tally)}
    assert tally.counts()["steps"] == 3
    assert issubclass(SessionStats, Tally)


def test_every_number_says_what_it_is() -> None:
    for field in fields(SessionStats):
        assert field.metadata[Statistic].text.endswith("."), field.name
