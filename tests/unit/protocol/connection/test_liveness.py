"""Liveness: when a silent peer is asked, and when it is taken for dead."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.connection.receiver import IDLE_PROBE_TIMEOUTS, IDLE_STRETCH_MAX, Liveness

NEVER = float("-inf")


def test_a_long_path_is_not_taken_for_a_dead_one() -> None:
    assert Liveness(1.0, 10.0, now=0.0).stretched_timeout(0.5) == IDLE_PROBE_TIMEOUTS * 0.5


def test_a_peer_that_makes_its_path_seem_long_is_not_waited_for_for_ever() -> None:
    assert Liveness(1.0, 10.0, now=0.0).stretched_timeout(100.0) == IDLE_STRETCH_MAX * 1.0


def test_a_peer_is_asked_when_nothing_was_heard_sent_or_asked_for_a_while() -> None:
    liveness = Liveness(30.0, 8.0, now=100.0)
    deadlines = [liveness.keepalive_deadline(NEVER), liveness.keepalive_deadline(103.0)]

    liveness.on_asked(105.0)
    deadlines.append(liveness.keepalive_deadline(103.0))
    liveness.last_heard = 106.0
    deadlines.append(liveness.keepalive_deadline(103.0))

    assert deadlines == [108.0, 111.0, 113.0, 114.0]


@given(
    idle_timeout=st.floats(0.001, 3600.0),
    keepalive=st.floats(0.001, 3600.0),
    probe_timeout=st.floats(0.0, 1e6),
)
def test_a_silent_peer_is_asked_twice_before_it_is_taken_for_dead(
    idle_timeout: float, keepalive: float, probe_timeout: float
) -> None:
    """So no single lost datagram ends a connection."""
    liveness = Liveness(idle_timeout, keepalive, now=0.0)
    first = liveness.keepalive_deadline(NEVER)
    liveness.on_asked(first)
    second = liveness.keepalive_deadline(first)

    assert 0 < first < second < liveness.idle_deadline(probe_timeout)
    assert liveness.idle_deadline(probe_timeout) <= IDLE_STRETCH_MAX * idle_timeout
