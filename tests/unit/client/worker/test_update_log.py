"""Own updates, and those of others: kept until everyone has them, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.update_log import ENTRY_BYTES, OwnUpdate, OwnUpdateLog, PeerUpdateLog
from gradwire_protocol.messages.updates import EncodedUpdate


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


def of_peers(*names: tuple[int, int], bytes_max: int = 10_000) -> PeerUpdateLog:
    """Return updates with bodies of 100 bytes, by rank and sequence."""
    updates = PeerUpdateLog(bytes_max)
    for rank, sequence in names:
        updates.append(rank, EncodedUpdate(sequence, 0, bytes(100)))
    return updates


def test_only_what_leads_up_to_what_one_has_is_offered() -> None:
    updates = of_peers((1, 4), (1, 5), (2, 7 + 2 * ENTRY_BYTES))

    assert updates.first_sequences({1: 5, 2: 9}) == {1: 4}
    assert [each.sequence for each in updates.between(1, 5, 5)] == [5]


@given(
    ranks=st.lists(st.integers(0, 3), max_size=60),
    stable=st.integers(0, 10),
)
def test_memory_for_updates_of_others_is_bounded(ranks: list[int], stable: int) -> None:
    updates, last = PeerUpdateLog(10_000), dict.fromkeys(range(4), 0)
    for rank in ranks:
        last[rank] += 1
        updates.append(rank, EncodedUpdate(last[rank], 0, bytes(100)))
        assert updates.nbytes <= 10_000
    updates.forget_stable(dict.fromkeys(range(4), stable))

    left = {rank: updates.between(rank, 1, 100) for rank in range(4)}
    assert updates.nbytes == (100 + ENTRY_BYTES) * sum(map(len, left.values()))
    for rank, each in left.items():
        if each:
            expected = list(range(each[0].sequence, last[rank] + 1))
            assert [update.sequence for update in each] == expected
            assert each[0].sequence > stable
