"""The sender: how large its datagrams are, and what becomes of messages when that changes."""

from gradwire_protocol.limits import DATAGRAM_BYTES_MIN
from support.pair import frames_of, kinds_of
from support.sending import FarEnd, Rig, payload_of


def searched(carries: int, limit: int = 8900) -> tuple[Rig, FarEnd]:
    """Return a rig that has found out what its path carries."""
    rig = Rig(datagram_bytes_max=limit)
    far = FarEnd(rig, lambda datagram: len(datagram) <= carries)
    rig.push(100)

    def is_over() -> bool:
        search = rig.sender.sizes.next_timer
        return not rig.in_flight and (search is None or search > far.now)

    far.run(is_over)
    return rig, far


# The search.


def test_a_size_is_tried_with_a_packet_that_holds_nothing_and_has_that_size() -> None:
    rig = Rig(datagram_bytes_max=8900)

    [datagram] = rig.datagrams()

    assert len(datagram) == 1452
    assert kinds_of(frames_of(datagram)) == ["Ping"]


def test_a_size_may_be_tried_while_the_window_is_full() -> None:
    rig = Rig(datagram_bytes_max=1452)
    rig.controller.window_bytes = 0
    rig.push(10_000)

    assert [len(datagram) for datagram in rig.datagrams()] == [1452]


# Black holes.


def test_what_is_unanswered_is_no_larger_than_what_is_sent() -> None:
    """Where datagrams have become smaller, a smaller one that arrives is an answer."""
    rig, far = searched(carries=8900)
    far.lets_pass = lambda datagram: len(datagram) <= DATAGRAM_BYTES_MIN
    rig.controller.window_bytes = 100_000
    rig.push(200_000)
    far.run(lambda: rig.counters.black_holes == 1)
    assert rig.sender.outcomes.stall(60.0, far.now + 1000) is not None
    before = len(far.sent)

    far.run(lambda: len(far.sent) > before)

    assert rig.sender.queue.bytes_queued > 0
    assert rig.sender.outcomes.stall(60.0, far.now + 1000) is None


# Another path.


def test_on_another_path_all_begins_anew() -> None:
    rig, far = searched(carries=8900)
    rig.push(50_000)
    rig.datagrams(far.now)

    rig.sender.outcomes.on_path_changed()

    assert rig.controller.paths == 2
    assert rig.sender.sizes.current == rig.controller.datagram_bytes == 1400


def test_messages_cut_for_a_wide_path_arrive_over_a_narrow_one() -> None:
    rig, far = searched(carries=8900)
    rig.push(50_000, 60_000)
    rig.datagrams(far.now)

    rig.sender.outcomes.on_path_changed()
    far.lets_pass = lambda datagram: len(datagram) <= 1400
    far.deliver()

    assert far.messages == {0: payload_of(0, 100), 1: payload_of(1, 50_000),
                            2: payload_of(2, 60_000)}  # fmt: skip
    assert rig.counters.black_holes == 0
