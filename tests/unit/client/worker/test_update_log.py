"""Own updates: kept until everyone has them, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.update_log import ENTRY_BYTES, OwnUpdate, OwnUpdateLog


def kept(sizes: list[int], bytes_max: int = 10_000) -> OwnUpdateLog:
    """Return updates with bodies of these sizes, from sequence 1 on."""
    updates = OwnUpdateLog(bytes_max)
    for sequence, size in enumerate(sizes, 1):
        updates.append(OwnUpdate(sequence, 0, bytes(size)))
    return updates


def sequences(updates: OwnUpdateLog, after: int = 0) -> list[int]:
    return [update.sequence for update in updates.after(after)]


@given(sizes=st.lists(st.integers(1, 400), max_size=30))
def test_the_oldest_ones_give_way(sizes: list[int]) -> None:
    updates = kept(sizes)

    assert updates.nbytes <= 10_000
    left = sequences(updates)
    assert left == list(range(len(sizes) - len(left) + 1, len(sizes) + 1))
    assert updates.reaches_back_to(len(sizes) - len(left))
    assert len(left) == len(sizes) or not updates.reaches_back_to(0)
    if len(left) < len(sizes):
        assert updates.nbytes + ENTRY_BYTES + sizes[len(sizes) - len(left) - 1] > 10_000
