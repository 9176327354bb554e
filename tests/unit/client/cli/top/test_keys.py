"""Keys as terminals send them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.cli.top.keys import BEGINNINGS, LONGEST, SEQUENCES, Key, keys_in


@pytest.mark.parametrize(
    ("pressed", "keys"),
    [
        (b"q", [Key.QUIT]),
        (b"\x1b[A\x1b[B", [Key.UP, Key.DOWN]),
        (b"\x1bOC\t\x1b[Z", [Key.NEXT, Key.NEXT, Key.PREVIOUS]),
        (b"\x1b[5~\x1b[6~", [Key.PAGE_UP, Key.PAGE_DOWN]),
        (b"xyz1\xffq", [Key.QUIT]),
    ],
)
def test_keys_are_known_by_what_a_terminal_sends(pressed: bytes, keys: list[Key]) -> None:
    assert keys_in(pressed) == (keys, b"")


def test_a_key_that_comes_in_two_pieces_is_one() -> None:
    found, rest = keys_in(b"j\x1b[")

    assert (found, rest) == ([Key.DOWN], b"\x1b[")
    assert keys_in(rest + b"6~") == ([Key.PAGE_DOWN], b"")


@given(st.lists(st.sampled_from([*SEQUENCES, b"x", b"\x1b", b"\xff"])), st.binary())
def test_whatever_comes_no_more_than_a_beginning_is_kept(parts: list[bytes], noise: bytes) -> None:
    _, rest = keys_in(b"".join(parts) + noise)

    assert rest == b"" or rest in BEGINNINGS
    assert len(rest) < LONGEST
