"""The backlog: what a member does not have yet, in no more memory than what is under way."""

from gradwire_server.state.backlog import Backlog


def reached(backlog: Backlog) -> dict[int, int]:
    lowest: dict[int, int] = {}
    for rank, sequence in backlog.received_up_to():
        lowest[rank] = min(sequence, lowest.get(rank, sequence))
    return lowest


def test_what_has_not_arrived_is_lacking_and_what_is_behind_it() -> None:
    backlog = Backlog()
    for sequence in (4, 5, 6):
        backlog.append(0, sequence, 100, float(sequence))
    backlog.append(1, 1, 50, 7.0)

    assert (reached(backlog), backlog.nbytes) == ({0: 3, 1: 0}, 350)
    assert backlog.remove(0, 5) == 5.0
    assert (reached(backlog), backlog.nbytes) == ({0: 3, 1: 0}, 250)
    assert backlog.remove(0, 4) == 4.0
    assert reached(backlog) == {0: 5, 1: 0}
    assert backlog.remove(0, 6) == 6.0
    assert backlog.remove(1, 1) == 7.0

    assert (reached(backlog), backlog.nbytes) == ({}, 0)


def test_what_was_never_sent_does_not_arrive() -> None:
    backlog = Backlog()
    backlog.append(0, 4, 100, 1.0)

    assert backlog.remove(0, 5) is None
    assert backlog.remove(7, 7) is None
    assert backlog.remove(0, 4) == 1.0
    assert backlog.remove(0, 4) is None
    assert backlog.nbytes == 0
