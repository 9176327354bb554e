"""The update log: what was accepted last, in bounded memory, and whether that is enough."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.kinds import Kind
from gradwire_server.updates.update_log import ENTRY_BYTES, UpdateLog

BYTES_MAX = 10 * ENTRY_BYTES + 1_000


def logged(
    sizes: list[tuple[int, int]], bytes_max: int = BYTES_MAX
) -> tuple[UpdateLog, list[tuple[int, int]]]:
    """Return a log of updates of ranks with sizes, and the names of all of them."""
    log, names, last = UpdateLog(bytes_max), [], dict[int, int]()
    for rank, size in sizes:
        sequence = last[rank] = last.get(rank, 0) + 1
        message = ShapedMessage.of(rank, sequence, Kind.UPDATE, bytes(size), 1200)
        log.append(rank, sequence, message)
        names.append((rank, sequence))
    return log, names


@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), max_size=40),
    versions=st.dictionaries(st.integers(0, 3), st.integers(0, 12)),
    own=st.integers(0, 3),
)
def test_it_has_all_that_somebody_lacks_exactly_when_it_says_so(
    sizes: list[tuple[int, int]], versions: dict[int, int], own: int
) -> None:
    log, names = logged(sizes)
    lacking = [
        (rank, sequence)
        for rank, sequence in names
        if rank != own and sequence > versions.get(rank, 0)
    ]

    found = [(rank, sequence) for rank, sequence, _ in log.since(versions, without=own)]

    assert log.nbytes <= BYTES_MAX
    assert found == lacking[len(lacking) - len(found) :]
    assert log.reaches_back_to(versions, without=own) == (found == lacking)


def test_small_updates_are_counted_with_what_they_take_besides_their_payload() -> None:
    log, names = logged([(0, 1)] * 20)

    assert [name[:2] for name in log.since({}, without=9)] == names[-10:]
    assert log.nbytes == 10 * (1 + ENTRY_BYTES)


def test_what_was_clipped_is_not_kept() -> None:
    log, _ = logged([(0, 10), (1, 10)])

    log.skip(1, 2)

    assert not log.reaches_back_to({0: 1, 1: 1}, without=9)
    assert log.reaches_back_to({0: 0, 1: 2}, without=9)
    assert log.reaches_back_to({}, without=1)
