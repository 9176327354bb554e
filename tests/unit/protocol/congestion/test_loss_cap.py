"""LossCap: cuts for what goes beyond the losses of the path, and only where there is a queue."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.congestion.loss_cap import (
    BACKOFF,
    BACKOFF_PROBING,
    FLOOR_MAX,
    GROWTH_CRUISING,
    GROWTH_PROBING,
    GROWTH_UNQUEUED,
    HEADROOM,
    PACKETS_MIN,
    PIPE_SHARE_MIN,
    LossCap,
)

SIZE = 1000
PIPE = 400_000.0


def end_round(
    cap: LossCap,
    *,
    packets: int = 400,
    lost: int = 0,
    gain: float = 1.0,
    full: bool = False,
    unqueued: bool = False,
    in_flight: int = 400_000,
) -> None:
    """End a round of which some packets were lost, while the queue was full or was not."""
    cap.acked += (packets - lost) * SIZE
    cap.lost += lost * SIZE
    cap.overflowed += full * lost * SIZE
    cap.end_round(
        gain=gain,
        marked=False,
        unqueued=unqueued,
        in_flight=in_flight,
        pipe=PIPE,
        datagram_bytes=SIZE,
    )


def test_there_is_no_cap_until_something_is_lost() -> None:
    cap = LossCap()

    end_round(cap)

    assert cap.window(1.0) == cap.window(1.25) == inf


@pytest.mark.parametrize(
    ("lost", "full", "gain", "limit"),
    [
        (40, True, 1.0, BACKOFF * 640_000),
        *((40, True, gain, BACKOFF_PROBING * 640_000) for gain in (1.25, 0.75)),
        *((40, False, gain, inf) for gain in (1.0, 1.25)),
        pytest.param(8, True, 1.0, inf, id="few"),
        pytest.param(20, True, 1.25, inf, id="few for a probe"),
    ],
)
def test_too_many_losses_with_a_queue_cut_what_was_in_flight(
    lost: int, full: bool, gain: float, limit: float
) -> None:
    cap = LossCap()

    end_round(cap, lost=lost, full=full, gain=gain, in_flight=600_000)

    assert cap.limit == pytest.approx(limit)
    assert cap.window(1.25) == cap.limit
    assert cap.window(1.0) == cap.window(0.75) == HEADROOM * cap.limit


def test_however_often_it_cuts_half_the_pipe_remains() -> None:
    cap = LossCap()

    for _ in range(20):
        end_round(cap, lost=200, full=True, gain=1.25, in_flight=0)

    assert cap.limit == PIPE_SHARE_MIN * PIPE


def test_it_grows_fast_while_probing_and_slowly_otherwise_until_it_caps_nothing() -> None:
    cap = LossCap()
    end_round(cap, lost=200, full=True)
    limit = cap.limit

    end_round(cap, gain=1.25)
    assert cap.limit == pytest.approx(limit + GROWTH_PROBING * PIPE)
    end_round(cap)
    assert cap.limit == pytest.approx(limit + (GROWTH_PROBING + GROWTH_CRUISING) * PIPE)

    for _ in range(30):
        end_round(cap, gain=1.25)
    assert cap.limit == inf


def test_rounds_without_a_queue_lift_it_up_to_the_pipe_however_short_they_are() -> None:
    cap = LossCap()
    for _ in range(20):
        end_round(cap, lost=200, full=True, in_flight=0)

    end_round(cap, packets=1, unqueued=True)
    assert cap.limit == pytest.approx((PIPE_SHARE_MIN + GROWTH_UNQUEUED) * PIPE)
    for _ in range(3):
        end_round(cap, packets=1, unqueued=True)
    assert cap.limit == PIPE


def test_rounds_of_few_packets_are_taken_together() -> None:
    cap = LossCap()

    end_round(cap, packets=PACKETS_MIN - 2, lost=1, full=True)
    assert cap.limit == inf
    end_round(cap, packets=2, full=True)

    assert cap.limit < inf


@pytest.mark.parametrize("path_loses", [0.01, 0.03, 0.1])
def test_what_the_path_loses_anyway_is_learned_while_cruising(path_loses: float) -> None:
    cap = LossCap()
    for _ in range(40):
        end_round(cap, lost=int(400 * path_loses))
    assert cap.floor == pytest.approx(path_loses, rel=0.05)

    end_round(cap, lost=int(400 * path_loses), full=True)
    assert cap.limit == inf
    end_round(cap, lost=int(400 * (0.04 + 2 * path_loses)), full=True)

    assert cap.limit < inf


@pytest.mark.parametrize("gain", [1.25, 0.75])
def test_nothing_is_learned_while_probing(gain: float) -> None:
    cap = LossCap()

    end_round(cap, lost=100, gain=gain)

    assert cap.floor == 0


def test_nothing_is_learned_where_the_queue_was_full_or_a_router_said_so() -> None:
    full, marked = LossCap(), LossCap()

    end_round(full, lost=100, full=True)
    marked.lost, marked.acked = 100 * SIZE, 300 * SIZE
    marked.end_round(
        gain=1.0,
        marked=True,
        unqueued=False,
        in_flight=400_000,
        pipe=PIPE,
        datagram_bytes=SIZE,
    )

    assert full.floor == marked.floor == 0
    assert full.limit == marked.limit < inf


def test_losses_known_to_be_without_a_queue_are_the_floor_at_once() -> None:
    cap = LossCap()
    for lost, acked in ((0, 40_000), (10_000, 50_000)):
        cap.lost, cap.acked = lost, acked
        cap.learn_floor()
        cap.reset_counts()

    assert cap.floor == 0.1
    assert cap.loss == 0
    assert not cap.is_lossy(1.0, SIZE)


def test_a_round_of_which_most_is_lost_does_not_show_what_the_path_loses() -> None:
    cap = LossCap()
    cap.acked, cap.lost = 6 * SIZE, 26 * SIZE

    cap.learn_floor()

    assert cap.floor == 0.0


@given(
    st.lists(
        st.tuples(
            st.integers(1, 1000), st.floats(0, 1), st.sampled_from([0.75, 1.0, 1.25]), st.booleans()
        )
    )
)
def test_whatever_is_lost_it_stays_within_its_bounds(
    rounds: list[tuple[int, float, float, bool]],
) -> None:
    cap = LossCap()

    for packets, loss, gain, full in rounds:
        end_round(cap, packets=packets, lost=int(loss * packets), gain=gain, full=full)

        assert 0 <= cap.floor <= FLOOR_MAX
        assert cap.limit >= PIPE_SHARE_MIN * PIPE
