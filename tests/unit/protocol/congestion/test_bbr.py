"""BbrLite: what it makes of single rounds. What it makes of paths is simulated."""

from typing import Any

import pytest

from gradwire_protocol.congestion import BbrLite
from gradwire_protocol.congestion.bbr import (
    BANDWIDTH_ROUNDS,
    DRAIN_GAIN,
    FULL_ROUNDS,
    KEPT_ROUNDS,
    PACING_MARGIN,
    PROBE_GAINS,
    PROBE_RTT_SECONDS,
    QUANTUM_PACKETS_MIN,
    STARTUP_GAIN,
    WINDOW_GAIN,
    WINDOW_GAIN_FILLING,
    WINDOW_QUANTA,
    Phase,
)
from gradwire_protocol.congestion.controller import WINDOW_PACKETS_INITIAL, WINDOW_PACKETS_MIN
from gradwire_protocol.congestion.first_window import BEGINNING_PACKETS, FIRST_GAIN
from gradwire_protocol.congestion.round_trip import VALID_SECONDS
from support.exchanges import DATAGRAM, RTT, Exchanges

INITIAL = WINDOW_PACKETS_INITIAL * DATAGRAM
SIZE = 400_000
"""A train that fills a path of `SIZE` / `RTT` bytes per second."""

SMALL = 100_000
"""Several of these are still the beginning."""


class Flow(Exchanges):
    """Exchanges with a `BbrLite` at the other end of them."""

    def __init__(self, random: float = 0.0) -> None:
        self.bbr = BbrLite(DATAGRAM, lambda: random)
        super().__init__(self.bbr)

    @property
    def gain(self) -> float:
        """Return the pacing gain, where the path carries `SIZE` bytes per round trip."""
        return round(self.bbr.pacing_rate / (PACING_MARGIN * SIZE / RTT), 3)

    def phase(self) -> Phase:
        return self.bbr.phase

    def fill(self) -> "Flow":
        """Send until the path is found full, and its queue empty: the first probe begins."""
        for _ in range(1 + FULL_ROUNDS):
            self.exchange(SIZE)
        assert self.phase() is Phase.PROBE_BANDWIDTH
        return self


# Before anything is known.


def test_without_a_bandwidth_the_window_is_spread_over_the_round_trip() -> None:
    flow = Flow()

    flow.acknowledge(1_000, flow.send(1_000), rtt=None)

    assert flow.bbr.window_bytes == INITIAL
    assert flow.bbr.pacing_rate == pytest.approx(FIRST_GAIN * INITIAL / RTT)


# STARTUP.


def test_rate_and_window_follow_from_bandwidth_and_round_trip() -> None:
    flow = Flow()

    flow.exchange(SIZE)

    rate = PACING_MARGIN * STARTUP_GAIN * SIZE / RTT
    assert flow.bbr.pacing_rate == pytest.approx(rate)
    # Twice what is in flight, twice the lump in which it was acknowledged, and three trains.
    window = WINDOW_GAIN * SIZE + WINDOW_GAIN * SIZE + WINDOW_QUANTA * rate * 0.001
    assert flow.bbr.window_bytes == pytest.approx(window, abs=1)


def test_a_short_first_message_does_not_make_it_slow() -> None:
    flow = Flow()

    flow.exchange(100, app_limited=True)

    assert flow.bbr.window_bytes == INITIAL
    assert flow.bbr.pacing_rate == pytest.approx(FIRST_GAIN * INITIAL / RTT)


def test_only_its_first_packets_leave_faster_than_a_window_in_a_round_trip() -> None:
    flow = Flow(0.5)
    flow.exchange(100, app_limited=True)

    flow.send(100, in_flight=INITIAL // 2)

    assert flow.bbr.pacing_rate == pytest.approx(INITIAL / RTT)


def test_in_the_beginning_it_keeps_its_rate_while_a_queue_fills() -> None:
    flow = Flow()
    flow.exchange(SMALL)

    flow.exchange(SMALL, rtt=1.1 * RTT)

    assert flow.phase() is Phase.STARTUP
    assert flow.bbr.pacing_rate == pytest.approx(PACING_MARGIN * SMALL / RTT)
    trains = WINDOW_QUANTA * QUANTUM_PACKETS_MIN * DATAGRAM
    window = WINDOW_GAIN_FILLING * SMALL + SMALL + trains  # with the lump, which is not doubled
    assert flow.bbr.window_bytes == pytest.approx(window, abs=1)


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param({}, id="no queue"),
        pytest.param({"rtt": 1.1 * RTT, "ack_delay": 0.1 * RTT}, id="a late acknowledgement"),
        pytest.param({"rtt": 1.1 * RTT, "app_limited": True}, id="a queue, and then a pause"),
    ],
)
def test_in_the_beginning_its_rate_more_than_doubles(queue: dict[str, Any]) -> None:
    flow = Flow()
    flow.exchange(SMALL)

    flow.exchange(SMALL, **queue)

    assert flow.bbr.pacing_rate == pytest.approx(PACING_MARGIN * FIRST_GAIN * SMALL / RTT)


def test_rounds_that_keep_the_rate_do_not_show_that_the_path_is_full() -> None:
    flow = Flow()
    flow.exchange(DATAGRAM)

    for _ in range(2 * FULL_ROUNDS):
        flow.exchange(DATAGRAM, rtt=1.1 * RTT, in_flight=2 * SIZE)

    assert flow.phase() is Phase.STARTUP


def begun_behind_a_queue(rounds: int) -> Flow:
    """Return a flow that ended its beginning in STARTUP, behind a queue it met for some rounds."""
    flow = Flow()
    flow.exchange(SMALL)
    few = (BEGINNING_PACKETS * DATAGRAM - SMALL) // rounds
    for _ in range(rounds):
        assert flow.phase() is Phase.STARTUP
        flow.exchange(few + 1, rtt=1.1 * RTT, in_flight=2 * SIZE)
    return flow


def test_a_queue_that_fills_throughout_the_beginning_shows_that_the_path_is_full() -> None:
    flow = begun_behind_a_queue(KEPT_ROUNDS + 1)

    assert flow.phase() is Phase.DRAIN
    # The lump in which its packets were acknowledged is the one of its first, larger exchange.
    assert flow.bbr.window_bytes < (1 + WINDOW_GAIN) * SMALL


def test_a_queue_that_fills_for_less_does_not() -> None:
    assert begun_behind_a_queue(KEPT_ROUNDS).phase() is Phase.STARTUP


def test_after_the_beginning_no_queue_keeps_it_from_growing() -> None:
    flow = Flow()
    flow.exchange(SIZE)

    flow.exchange(SIZE, rtt=1.1 * RTT)

    assert flow.gain == STARTUP_GAIN


def test_it_goes_on_while_the_bandwidth_grows_by_a_quarter_in_three_rounds() -> None:
    flow = Flow()
    flow.exchange(100_000)

    for size in (110_000, 120_000, 130_000, 140_000, 150_000, 170_000, 180_000, 190_000):
        flow.exchange(size)
        assert flow.phase() is Phase.STARTUP
    flow.exchange(200_000, in_flight=2 * SIZE)

    assert flow.phase() is Phase.DRAIN


def doubling(**options: int) -> list[dict[str, Any]]:
    """Return rounds in which a bandwidth doubles and a tenth is lost; then it stays as it is."""
    rounds = [50_000 * 2**i for i in range(5)]
    return [{"size": size, "lost": size // 10, **options} for size in rounds]


PAUSES: dict[str, Any] = {"app_limited": True}
QUEUE: dict[str, Any] = {"in_flight": 2 * SIZE}
MORE_LOST: dict[str, Any] = {"size": 50_000 * 2**4, "lost": 9 * 10_000}


@pytest.mark.parametrize(
    ("rounds", "phase"),
    [
        pytest.param(
            [{"size": 100_000, **PAUSES}] * 20, Phase.STARTUP, id="the application sets the pace"
        ),
        pytest.param(
            [{"size": SIZE}, {"size": SIZE, "lost": 20_000, "rtt": 1.2 * RTT, **QUEUE}],
            Phase.DRAIN,
            id="a few percent are lost and there is a queue",
        ),
        pytest.param(
            [
                {"size": SIZE, **PAUSES},
                *[{"size": SIZE, "lost": 100_000, **PAUSES}] * 7,
                {"size": SIZE, "lost": 100_000, **PAUSES, **QUEUE},
            ],
            Phase.DRAIN,
            id="a burst floods the path again and again",
        ),
        pytest.param(
            [{"size": SIZE, **PAUSES}, *[{"size": SIZE, "lost": 100_000, **PAUSES}] * 2],
            Phase.STARTUP,
            id="a burst floods the path, and its bandwidth is not known",
        ),
        pytest.param(
            [*doubling(), MORE_LOST, MORE_LOST],
            Phase.STARTUP,
            id="the path loses as much while it grows, without a queue",
        ),
        # The floor is not learned then, and the losses after it say that the path is full.
        pytest.param(
            [*doubling(marked=1), {**MORE_LOST, "in_flight": SIZE}, {**MORE_LOST, **QUEUE}],
            Phase.DRAIN,
            id="a mark says that it may have been a queue",
        ),
    ],
)
def test_losses_end_the_start_where_there_may_be_a_queue(
    rounds: list[dict[str, Any]], phase: Phase
) -> None:
    flow = Flow()

    for each in rounds:
        flow.exchange(**each)

    assert flow.phase() is phase


def test_without_a_queue_it_takes_a_tenth_and_a_second_round() -> None:
    few, many = Flow(), Flow()
    for flow, lost in ((few, 30_000), (many, 60_000)):
        flow.exchange(SIZE)
        flow.exchange(SIZE, lost=lost, in_flight=2 * SIZE)
        assert flow.phase() is Phase.STARTUP
        flow.exchange(SIZE, lost=lost, in_flight=2 * SIZE)

    assert few.phase() is Phase.STARTUP
    assert many.phase() is Phase.DRAIN


# DRAIN and PROBE_BANDWIDTH.


def test_a_full_path_is_drained_until_no_more_is_in_flight_than_it_holds() -> None:
    flow = Flow()
    flow.exchange(SIZE)
    for _ in range(FULL_ROUNDS):
        flow.exchange(SIZE, in_flight=2 * SIZE)
    assert flow.phase() is Phase.DRAIN
    assert flow.gain == DRAIN_GAIN

    flow.exchange(SIZE, in_flight=2 * SIZE)
    assert flow.phase() is Phase.DRAIN
    flow.exchange(SIZE, in_flight=SIZE)

    assert flow.phase() is Phase.PROBE_BANDWIDTH


def test_probing_goes_through_its_gains_a_round_each() -> None:
    flow = Flow().fill()

    gains = []
    for _ in range(2 * len(PROBE_GAINS)):
        gains.append(flow.gain)
        flow.exchange(SIZE)

    assert gains == 2 * list(PROBE_GAINS)


def test_a_round_ends_with_the_first_acknowledgement_of_what_was_sent_in_it() -> None:
    flow = Flow().fill()

    departure = flow.send(SIZE)
    flow.now += RTT
    flow.acknowledge(SIZE // 2, departure)
    flow.now += RTT
    flow.acknowledge(SIZE // 2, departure)

    assert flow.gain == 0.75


@pytest.mark.parametrize("random", [0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.999])
def test_it_begins_anywhere_but_with_the_gain_that_makes_up_for_a_probe(random: float) -> None:
    assert Flow(random).fill().gain != 0.75


def test_flows_begin_at_different_gains() -> None:
    assert {Flow(random).fill().gain for random in (0.0, 0.5)} == {1.25, 1.0}


def test_a_gain_lasts_for_a_round_trip_even_where_rounds_are_shorter() -> None:
    flow = Flow().fill()
    departure = flow.send(SIZE)
    flow.now += 0.01

    flow.acknowledge(SIZE, departure, rtt=None)

    assert flow.gain == 1.25


def test_a_probe_that_found_more_is_repeated() -> None:
    flow = Flow().fill()
    flow.exchange(SIZE)
    assert flow.gain == 0.75

    flow.exchange(SIZE * 5 // 4)

    assert flow.gain == pytest.approx(1.25 * 5 / 4, abs=0.01)
    flow.exchange(SIZE * 5 // 4)
    flow.exchange(SIZE * 5 // 4)
    assert flow.gain == pytest.approx(5 / 4, abs=0.01)


def test_the_bandwidth_is_the_largest_of_some_rounds() -> None:
    flow = Flow().fill()

    for _ in range(BANDWIDTH_ROUNDS - 1):
        flow.exchange(SIZE // 2)
    assert flow.gain in PROBE_GAINS
    flow.exchange(SIZE // 2)

    assert flow.gain / 0.5 in PROBE_GAINS


def test_an_application_that_sends_little_does_not_lower_the_bandwidth_but_may_raise_it() -> None:
    flow = Flow().fill()

    for _ in range(5 * len(PROBE_GAINS)):
        flow.exchange(1_000, app_limited=True)
    assert flow.gain in PROBE_GAINS
    flow.exchange(2 * SIZE, app_limited=True)

    assert flow.gain / 2 in PROBE_GAINS


def test_the_window_has_room_for_the_lumps_in_which_acknowledgements_come() -> None:
    """Here whole trains are acknowledged at once."""
    flow = Flow(random=0.5).fill()

    trains = WINDOW_QUANTA * PACING_MARGIN * SIZE / RTT * 0.001
    assert flow.bbr.window_bytes == pytest.approx(WINDOW_GAIN * SIZE + SIZE + trains, abs=1)


# Losses.


def test_losses_cap_the_window_where_the_queue_was_full() -> None:
    flow = Flow().fill()
    before = flow.bbr.window_bytes

    flow.exchange(SIZE, lost=SIZE // 10, in_flight=SIZE, rtt=1.2 * RTT)

    assert flow.bbr.window_bytes == pytest.approx(0.85 * 0.9 * (SIZE + SIZE // 10), rel=0.01)
    assert flow.bbr.window_bytes < before


def test_a_burst_of_losses_is_no_reason_to_slow_down_where_there_was_no_queue() -> None:
    """A queue was there before it, and a longer one."""
    flow = Flow().fill()
    flow.exchange(SIZE, rtt=1.5 * RTT)
    flow.exchange(SIZE)

    flow.exchange(SIZE, lost=SIZE // 3, in_flight=SIZE, rtt=1.2 * RTT)

    assert flow.bbr.window_bytes >= WINDOW_GAIN * SIZE


def test_losses_that_were_none_do_not() -> None:
    flow = Flow().fill()
    before = flow.bbr.window_bytes
    departure = flow.send(SIZE)
    flow.bbr.on_lost(SIZE // 10, flow.now, 0, flow.now)

    flow.bbr.on_spurious_loss(SIZE // 10, flow.now)
    flow.bbr.on_spurious_loss(SIZE // 10, flow.now)
    flow.now += RTT
    flow.acknowledge(SIZE, departure)

    assert flow.bbr.window_bytes == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("marked", [0, 1])
def test_a_mark_is_evidence_of_a_queue(marked: int) -> None:
    flow = Flow(random=0.5).fill()
    before = flow.bbr.window_bytes

    flow.exchange(SIZE, lost=SIZE // 10, marked=marked)

    assert (flow.bbr.window_bytes < 0.8 * before) == bool(marked)


# PROBE_RTT.


def grow_old(flow: Flow) -> None:
    """Keep a queue, and much in flight, for so long that the round trip is measured again."""
    for _ in range(int(VALID_SECONDS / RTT)):
        flow.exchange(SIZE, rtt=1.2 * RTT, in_flight=SIZE)


def test_a_round_trip_that_is_old_is_measured_with_little_in_flight() -> None:
    flow = Flow().fill()
    grow_old(flow)

    assert flow.phase() is Phase.PROBE_RTT
    assert flow.bbr.window_bytes == pytest.approx(SIZE / 2 / 1.2, rel=0.01)


def test_measuring_takes_a_while_and_a_round_with_little_in_flight() -> None:
    flow = Flow().fill()
    grow_old(flow)
    while flow.phase() is not Phase.PROBE_RTT:
        flow.exchange(SIZE, rtt=1.2 * RTT, in_flight=SIZE)
    flow.exchange(SIZE, rtt=1.2 * RTT, in_flight=SIZE)
    little = flow.bbr.window_bytes // 2

    begin = flow.now
    flow.exchange(little, in_flight=little, rtt=1.1 * RTT)
    while flow.phase() is Phase.PROBE_RTT:
        flow.exchange(little, in_flight=little, rtt=1.1 * RTT)

    assert flow.now - begin >= PROBE_RTT_SECONDS
    assert flow.now - begin <= PROBE_RTT_SECONDS + 3 * RTT
    assert flow.phase() is Phase.PROBE_BANDWIDTH


def test_an_application_that_pauses_measures_it_by_the_way() -> None:
    flow = Flow().fill()

    for _ in range(100):
        flow.exchange(SIZE, rtt=1.2 * RTT)
        assert flow.phase() is Phase.PROBE_BANDWIDTH
        flow.now += 0.1


def test_measuring_before_the_path_is_full_leads_back_to_startup() -> None:
    flow = Flow()
    flow.exchange(SIZE)
    while flow.phase() is Phase.STARTUP:
        flow.exchange(SIZE, rtt=1.2 * RTT, in_flight=SIZE, app_limited=True)
    assert flow.phase() is Phase.PROBE_RTT

    for _ in range(10):
        flow.exchange(1_000, app_limited=True)

    assert flow.phase() is Phase.STARTUP


# Starting anew.


def test_after_persistent_congestion_it_starts_anew_with_the_smallest_window() -> None:
    flow = Flow().fill()

    flow.bbr.on_persistent_congestion()
    assert flow.bbr.window_bytes == WINDOW_PACKETS_MIN * DATAGRAM
    assert flow.phase() is Phase.STARTUP
    flow.exchange(WINDOW_PACKETS_MIN * DATAGRAM)

    window = 2 * WINDOW_GAIN * WINDOW_PACKETS_MIN + WINDOW_QUANTA * QUANTUM_PACKETS_MIN
    assert flow.bbr.window_bytes == pytest.approx(window * DATAGRAM)


def test_on_another_path_it_starts_anew_and_learns_nothing_from_what_is_under_way() -> None:
    flow = Flow().fill()
    departure = flow.send(SIZE)

    flow.bbr.on_path_changed()
    flow.now += 0.001
    flow.acknowledge(SIZE, departure, rtt=0.001)

    assert flow.phase() is Phase.STARTUP
    assert flow.bbr.window_bytes == INITIAL
    assert flow.bbr.pacing_rate == pytest.approx(FIRST_GAIN * INITIAL / 0.001)
    flow.exchange(SIZE, rtt=2 * RTT)
    assert flow.bbr.pacing_rate == pytest.approx(PACING_MARGIN * STARTUP_GAIN * SIZE / 2 / RTT)


def test_datagrams_of_another_size_change_the_smallest_window() -> None:
    flow = Flow()
    flow.bbr.set_datagram_bytes(2 * DATAGRAM)
    flow.exchange(1_000, app_limited=True)

    assert flow.bbr.window_bytes == 2 * INITIAL
