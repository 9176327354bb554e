"""Parts of sums of a relay, which come in any order."""

from itertools import permutations
from typing import Any, cast

import numpy as np
import pytest

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.masters.relaying import Merged, PeerSpan
from gradwire_server.branches.arriving_sums import ArrivingSums
from gradwire_server.branches.branch import Branch
from gradwire_server.updates.decoding import InlineDecoder

ELEMENTS = 10
SPAN = PeerSpan(3, 0, 4, 5)


class Numbered:
    """As much of a `Branch` as is needed."""

    def __init__(self, number: int) -> None:
        self.number = number


RELAY, OTHER = cast(Branch, Numbered(1)), cast(Branch, Numbered(2))


def part(number: int, parts: int, *, of: int = 7, **fields: Any) -> Merged:
    """Return a part of a sum, which adds 1 to the element of its number."""
    update = Update(0, ELEMENTS, 1, np.array([number], np.uint32), np.array([1], np.int32))
    spans = (SPAN,) if number == parts - 1 else ()
    said: dict[str, Any] = {
        "spans": spans,
        "updates": 1,
        "based_on": 0,
        "clocks": {},
        "body": pack_update(update),
    }
    return Merged(of, number, parts, **{**said, **fields})


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_sum_is_whole_when_all_parts_are_here_in_whatever_order(order: list[int]) -> None:
    sums, found = ArrivingSums(InlineDecoder()), []
    for number in order[:-1]:
        assert sums.take(RELAY, part(number, 3), ELEMENTS) == []
    assert sums.take(OTHER, part(0, 1), ELEMENTS), "that of another relay"

    whole = sums.take(RELAY, part(order[-1], 3), ELEMENTS)
    sums.decode(RELAY, whole, ELEMENTS, lambda updates, error: found.append((updates, error)))

    assert whole[-1].spans == (SPAN,)
    [(updates, error)] = found
    assert error is None
    assert [update.index.tolist() for update in updates] == [[0], [1], [2]]
    assert sums.take(RELAY, part(0, 1, of=8), ELEMENTS), "the next one"


def test_a_part_that_cannot_be_decoded_is_told() -> None:
    sums, found = ArrivingSums(InlineDecoder()), []
    parts = [part(0, 2, body=b"nonsense"), part(1, 2)]

    sums.decode(RELAY, parts, ELEMENTS, lambda updates, error: found.append(error))

    assert isinstance(found[0], MalformedUpdateError)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([part(0, 2), part(0, 2)], "part 0 of 2"),
        ([part(0, 2), part(1, 2, of=8)], "Merged 8 within 7"),
        ([part(0, 2), part(1, 3, spans=())], "Merged 7 within 7"),
        ([part(2, 2, spans=())], "part 2 of 2"),
        ([part(0, 2, spans=(SPAN,))], "spans and clocks belong to the last part"),
        ([part(0, 2, clocks={0: 1})], "spans and clocks belong to the last part"),
        ([part(each, 2_000, body=b"") for each in range(1_026)], "65664 bytes; .* at most 65616"),
        ([part(0, 1, spans=())], "spans and clocks belong to the last part"),
        ([part(0, 1, spans=(PeerSpan(3, 0, 4, 4),))], "updates 4 to 4"),
        ([part(0, 1, spans=(SPAN, SPAN))], "a rank for a second time"),
        (
            [part(each, 9, body=bytes(2**14)) for each in range(4)],
            f"{4 * (2**14 + 64)} bytes; a sum of {ELEMENTS} elements has at most {2**16 + 80}",
        ),
    ],
)
def test_what_cannot_be_parts_of_one_sum_is_refused(parts: list[Merged], complaint: str) -> None:
    sums = ArrivingSums(InlineDecoder())
    for each in parts[:-1]:
        sums.take(RELAY, each, ELEMENTS)

    with pytest.raises(InvalidMessageError, match=complaint):
        sums.take(RELAY, parts[-1], ELEMENTS)


def test_of_a_sum_that_is_of_no_run_nothing_is_kept() -> None:
    sums = ArrivingSums(InlineDecoder())
    for number in range(8):
        assert sums.take(RELAY, part(number, 9, body=bytes(2**14)), None) == []

    whole = sums.take(RELAY, part(8, 9), None)

    assert [each.body for each in whole] == [b""] * 9
    assert whole[-1].spans == (SPAN,)
