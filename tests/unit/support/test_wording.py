"""A message is known by what it names, and by nothing less."""

import re

import pytest

from support.wording import naming

MESSAGE = "idle_timeout_seconds=0.5; it is 1 to 3600 (2^-40 or -7)\nin run-01 of 'alpha.'"


@pytest.mark.parametrize(
    "parts",
    [
        ("idle_timeout_seconds", 0.5, 1, 3600),
        (3600, 1, "idle_timeout_seconds=0.5;"),
        ("it is", "2^-40", -7),
        ("run-01", "alpha"),
        ("01", "'alpha.'", "; it"),
    ],
    ids=str,
)
def test_a_message_that_names_everything_is_known_in_any_order(parts: tuple[object, ...]) -> None:
    pattern = naming(*parts)

    assert (pattern == MESSAGE, pattern != MESSAGE) == (True, False)
    assert (1, pattern) == (1, MESSAGE)
    assert pattern in ["", MESSAGE]
    with pytest.raises(LookupError, match=pattern):
        raise LookupError(MESSAGE)


@pytest.mark.parametrize(
    "part",
    ["timeout", "seconds", 0, 5, 36, 360, 0.55, 7, 40, "alph", "IDLE_TIMEOUT_SECONDS"],
)
def test_a_part_that_does_not_stand_by_itself_is_not_named(part: object) -> None:
    pattern = naming("idle_timeout_seconds", part)

    assert (pattern == MESSAGE, pattern != MESSAGE) == (False, True)
    assert re.search(pattern, MESSAGE) is None


def test_it_shows_what_it_looks_for_and_looks_for_something() -> None:
    assert repr(naming("rank", -1)) == "naming('rank', '-1')"
    assert naming("rank", -1) == naming("rank", "-1") != naming("rank", 1)
    for parts in ((), ("rank", "")):
        with pytest.raises(AssertionError):
            naming(*parts)
