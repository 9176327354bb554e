"""Own updates: kept until everyone has them, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire.kept import Kept, OwnUpdate


def kept(sizes: list[int], bytes_max: int = 1_000) -> Kept:
    """Return updates with bodies of these sizes, from sequence 1 on."""
    updates = Kept(bytes_max)
    for sequence, size in enumerate(sizes, 1):
        updates.put(OwnUpdate(sequence, 0, bytes(size)))
    return updates


def sequences(updates: Kept, after: int = 0) -> list[int]:
    return [update.sequence for update in updates.after(after)]


def test_what_is_stable_is_forgotten() -> None:
    updates = kept([1, 2, 3, 4])

    updates.forget(2)

    assert sequences(updates) == [3, 4]
    assert (len(updates), updates.nbytes) == (2, 7)
    assert updates.reaches_back_to(2)
    assert not updates.reaches_back_to(1)


def test_what_comes_after_an_update_is_found() -> None:
    updates = kept([1, 1, 1])

    assert sequences(updates, after=1) == [2, 3]
    assert sequences(updates, after=3) == []


@given(sizes=st.lists(st.integers(1, 400), max_size=30))
def test_the_oldest_ones_give_way(sizes: list[int]) -> None:
    updates = kept(sizes)

    assert updates.nbytes <= 1_000
    left = sequences(updates)
    assert left == list(range(len(sizes) - len(left) + 1, len(sizes) + 1))
    assert updates.reaches_back_to(len(sizes) - len(left))
    assert len(left) == len(sizes) or not updates.reaches_back_to(0)
    assert len(left) == len(sizes) or updates.nbytes + sizes[len(sizes) - len(left) - 1] > 1_000
