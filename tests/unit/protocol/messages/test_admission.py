"""What workers and masters say of who takes part where."""

import pytest

from gradwire_protocol import UsageError
from gradwire_protocol.messages.admission import WEIGHT_MAX, split_masters

# Several masters.


@pytest.mark.parametrize(
    ("text", "masters"),
    [
        ("a", [("a", 1)]),
        ("a:1", [("a:1", 1)]),
        ("a:1,b:2, [::1]:3 ", [("a:1", 1), ("b:2", 1), ("[::1]:3", 1)]),
        ("a:1*3,[::1]:2*1000", [("a:1", 3), ("[::1]:2", WEIGHT_MAX)]),
    ],
)
def test_masters_are_separated_by_commas_and_may_have_weights(
    text: str, masters: list[tuple[str, int]]
) -> None:
    assert [(each.address, each.weight) for each in split_masters(text)] == masters


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing before or behind a comma"),
        ("a,", "nothing before or behind a comma"),
        (",a", "nothing before or behind a comma"),
        ("a, ,b", "nothing before or behind a comma"),
        ("a,b,a", "names a twice"),
        ("a,b,a*2", "names a twice"),
        ("*2,b", "nothing before or behind a comma"),
        ("a*,b", "from 1 to 1000"),
        ("a*0,b", "from 1 to 1000"),
        ("a*1.5,b", "from 1 to 1000"),
        ("a*1001,b", "from 1 to 1000"),
    ],
)
def test_masters_that_are_missing_or_named_twice_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        split_masters(text)
