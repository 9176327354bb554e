"""What a master keeps of what has happened."""

import logging

import pytest

from gradwire_server.series.journal import ENTRIES_MAX, TEXT_CHARACTERS_MAX, Happening, Journal


def noted(*texts: str) -> Journal:
    journal = Journal()
    for at, text in enumerate(texts):
        journal.note(Happening.JOINED, text, run="bert", at=float(at), rank=at)
    return journal


def test_what_is_noted_is_logged_in_the_same_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gradwire.master")
    journal = noted("one % joined")
    journal.note(Happening.LOST, "one is gone", run="bert", at=3.0, level=logging.WARNING)

    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.INFO, "one % joined"),
        (logging.WARNING, "one is gone"),
    ]
    assert [(each.number, each.at, each.kind, each.rank) for each in journal.after(0)] == [
        (1, 0.0, Happening.JOINED, 0),
        (2, 3.0, Happening.LOST, None),
    ]


def test_a_reader_asks_for_what_is_new() -> None:
    journal = noted("a", "b", "c")

    assert [each.text for each in journal.after(1)] == ["b", "c"]
    assert journal.after(journal.last) == []
    assert journal.after(17) == []


def test_the_newest_are_kept_and_long_texts_are_cut() -> None:
    journal = noted(*(["x" * 10_000] * (ENTRIES_MAX + 5)))

    kept = journal.after(0)
    assert [kept[0].number, kept[-1].number, len(kept)] == [6, ENTRIES_MAX + 5, ENTRIES_MAX]
    assert {len(each.text) for each in kept} == {TEXT_CHARACTERS_MAX}
