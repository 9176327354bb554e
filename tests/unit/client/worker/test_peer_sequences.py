"""How far peers' updates have come: a sum counts where all that comes before it is here."""

import pytest

from gradwire.worker.peer_sequences import PeerSequences
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.link import UpdateReceived
from gradwire_protocol.messages.updates import EncodedUpdate, Span
from support.wording import naming

SPAN = Span({0: 4, 1: 0}, {0: 6, 1: 1}, 3, 3, {})


def begun(versions: dict[int, int], **waiting: int) -> PeerSequences:
    """Return what has come of rank 0: four updates, and one that waits perhaps."""
    sequences = PeerSequences()
    sequences.begin_with({0: 4, **versions})
    for sequence in waiting.values():
        update = EncodedUpdate(sequence, 0, b"x")
        sequences.accept_update(UpdateReceived(0, update, None, 0))  # type: ignore[arg-type]
    return sequences


def test_a_sum_follows_where_all_before_it_is_here() -> None:
    assert begun({}).follows(SPAN, 2)
    assert begun({1: 0, 7: 9}, later=7).follows(SPAN, 2)
    assert begun({}).follows(Span({0: 4, 2: 7}, {0: 6, 2: 9}, 4, 1, {}), 2), "2 is our rank"
    assert begun({3: 8}).follows(Span({0: 2, 3: 8}, {3: 9}, 1, 1, {}), 2)


def test_a_sum_waits_for_what_comes_before_also_of_ranks_of_which_it_has_nothing() -> None:
    assert not begun({}).follows(Span({0: 5}, {0: 6}, 1, 1, {}), 2)
    assert not begun({}).follows(Span({0: 4, 3: 1}, {0: 6}, 2, 1, {}), 2)


@pytest.mark.parametrize(
    ("span", "waiting", "named"),
    [
        (Span({0: 4}, {0: 6, 1: 1}, 3, 1, {}), {}, ("begins",)),
        (Span({0: 3}, {0: 6}, 3, 1, {}), {}, ("updates 4 to 6", "rank 0", 4)),
        (Span({0: 4}, {0: 4}, 3, 1, {}), {}, ("updates 5 to 4", "rank 0", 4)),
        (SPAN, {"sooner": 6}, ("updates 5 to 6", "rank 0", "and 6")),
    ],
)
def test_a_sum_with_which_something_would_be_there_twice_is_refused(
    span: Span, waiting: dict[str, int], named: tuple[object, ...]
) -> None:
    with pytest.raises(InvalidMessageError, match=naming(*named)):
        begun({}, **waiting).follows(span, 2)
