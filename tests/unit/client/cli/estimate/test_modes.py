"""What run modes cost: by hand, in proportion, and beside the codec's own sizes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire.cli.estimate.demands import MEAN_HITS
from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.model import estimate
from gradwire.cli.estimate.modes import DENSE_HITS, SCAN_HITS, USUAL_MODES, estimate_mode
from gradwire.cli.estimate.sizes import (
    UPDATE_HEADER_BYTES,
    ack_link_bytes,
    link_bytes,
    ring_bytes,
    update_bytes,
)
from gradwire_codecs import LocalFeedback, Replica, Update, decode
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.round_sum import RoundSum, ranges_of
from gradwire_protocol.messages.modes.mode import USUAL, Mode, parse_mode
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX
from support.estimating import COSTS, PLAUSIBLE, inputs

WITH_ROUNDS = st.sampled_from([mode for mode in USUAL_MODES if mode.has_rounds])
FREE = replace(COSTS, **dict.fromkeys(COSTS.__dataclass_fields__, 0.0))
SLACK = 1 + 1e-9

PARAMETERS = 1000 * 1348 - UPDATE_HEADER_BYTES
"""With 8 bits each, a contribution fills 1,000 datagrams."""
CARRIED = 1000 * (1348 + 94) + 32 * 90
"""Bytes of that on a link, and of the acknowledgements of as much: one for 32 datagrams."""


def seconds_of(given: Inputs, mode: str) -> dict[str, float]:
    return {each.name: each.seconds for each in estimate_mode(given, parse_mode(mode)).phases}


# By hand.


def test_a_contribution_goes_up_and_a_result_comes_down_in_each_round() -> None:
    given = inputs(parameters=PARAMETERS, workers=4, costs=FREE, link=1e8, master_link=1e9)

    found = estimate_mode(given, parse_mode("averaging(every=5)"))

    assert found.sent_bytes == 1_348_000
    assert (found.traffic.up, found.traffic.down) == (CARRIED / 5, CARRIED / 5)
    assert found.link_seconds == pytest.approx(2 * 8 * CARRIED / 1e8 / 5)
    assert found.master_link_seconds == pytest.approx(4 * 2 * 8 * CARRIED / 1e9 / 5)
    assert found.round_seconds == pytest.approx(2 * 8 * CARRIED / 1e8 + 0.02)
    assert found.step_seconds == pytest.approx(0.1 + found.round_seconds / 5)
    # A ring of four sends 6 bytes for each parameter and step, and this mode 2 in five steps.
    assert found.times_fewer == pytest.approx(5 * 6 * PARAMETERS / (2 * CARRIED))


@pytest.mark.parametrize(
    ("changed", "up", "down"),
    [
        ({}, ("worker's link, up", 1e8), ("worker's link, down", 1e8)),
        ({"link_up": 1e7}, ("worker's link, up", 1e7), ("worker's link, down", 1e8)),
        ({"link": 1e7}, ("worker's link, up", 1e8), ("worker's link, down", 1e7)),
        ({"master_link": 1e8}, ("master's link, in", 1e8 / 4), ("master's link, out", 1e8 / 4)),
    ],
)
def test_a_worker_waits_for_the_slower_one_of_its_link_and_the_masters_with_all_workers(
    changed: dict[str, float], up: tuple[str, float], down: tuple[str, float]
) -> None:
    given = inputs(**{"parameters": PARAMETERS, "workers": 4, "costs": FREE} | changed)

    phases = {each.name: each for each in estimate_mode(given, USUAL["synchronous"]).phases}

    for name, (limit, rate) in (("upload", up), ("download", down)):
        assert phases[name].limit == limit
        assert phases[name].seconds == pytest.approx(8 * CARRIED / rate)


def test_state_of_an_optimizer_is_a_byte_for_each_value_that_it_keeps() -> None:
    given = inputs(parameters=10**6, workers=4)
    for kept, values in (("True", 2), ("SGD[momentum_buffer]", 1), ("Adam[a b c; step]", 3)):
        mode = parse_mode(f"averaging(bits=4, optimizer_state={kept})")
        found = estimate_mode(given, mode)
        assert found.sent_bytes == UPDATE_HEADER_BYTES + 10**6 * (0.5 + values)
        plain = estimate_mode(given, parse_mode("averaging(bits=4)"))
        assert all(
            mine.seconds >= its.seconds
            for mine, its in zip(found.phases, plain.phases, strict=True)
        )


@pytest.mark.parametrize("streams", [1, 4])
def test_in_streams_a_link_carries_a_part_at_once_and_training_goes_on(streams: int) -> None:
    given = inputs(parameters=4 * PARAMETERS, workers=4, costs=FREE, link=1e8, master_link=1e9)

    found = estimate_mode(given, parse_mode(f"diloco(every=64, streams={streams})"))

    size = UPDATE_HEADER_BYTES + 4 * PARAMETERS / streams
    assert found.sent_bytes == size
    # As many bytes in all, but for what the last packet is filled with.
    assert found.traffic.up == pytest.approx(4 * CARRIED / 64, rel=1e-3)
    waits = 0.0 if streams > 1 else found.round_seconds / 64
    assert found.step_seconds == pytest.approx(0.1 + waits)


def test_in_streams_a_worker_waits_where_a_round_takes_longer_than_its_steps() -> None:
    given = inputs(parameters=4 * PARAMETERS, workers=4, link=1e8, master_link=1e9)

    found = estimate_mode(given, parse_mode("diloco(every=8, streams=4)"))

    trained = 2 * 0.1
    assert found.overlapped_seconds > trained
    assert found.step_seconds == pytest.approx(found.round_seconds / 2)
    for samples in (0.5, 0.9, 0.99):
        steps = found.every_at(samples)
        busy, other = found.busy_seconds, found.overlapped_seconds
        assert all(
            (0.1 * n / (busy + max(0.1 * n, other)) >= samples) is (n >= steps)
            for n in range(1, 2 * steps)
        )


def test_a_round_takes_the_codecs_and_the_masters_time() -> None:
    given = inputs(parameters=10**6, workers=4, link=1e12, link_up=1e12, master_link=1e12)

    seconds = seconds_of(given, "synchronous")

    dense = DENSE_HITS[8]
    master = COSTS.master_seconds_per_hit * 1e6
    assert seconds["encode"] == pytest.approx(2e-4 + 2.5e-4 + 3e-5 + 2 * 0.015 * dense)
    assert seconds["upload"] == pytest.approx(4 * (3e-4 + master * dense + 5e-9 * 1_000_032))
    assert seconds["mean"] == pytest.approx((MEAN_HITS * dense + SCAN_HITS) * master)
    assert seconds["download"] == pytest.approx(4 * (1e-4 + 5e-9 * 1_000_032))
    assert seconds["apply"] == pytest.approx(3e-5 + 0.015 * dense)
    assert seconds["round trip"] == 0.02


def test_a_sparse_contribution_is_an_update_and_its_result_has_what_any_worker_changed() -> None:
    given = inputs(workers=2, density=0.1, costs=FREE)

    found = estimate_mode(given, parse_mode("averaging(bits=0)"))

    union = update_bytes(given.parameters, 1 - 0.9**2)
    assert found.sent_bytes == given.update_bytes
    assert found.traffic.up * 16 == pytest.approx(given.update_bytes * 1442 / 1348, rel=0.01)
    assert found.traffic.down * 16 == pytest.approx(union * 1442 / 1348, rel=0.01)


def test_each_worker_receives_every_result_of_a_master_that_makes_many_of_a_round() -> None:
    given = inputs(workers=8)
    single, pairs, all_together, more = (
        estimate_mode(given, parse_mode(f"central(gradients_per_update={n})"))
        for n in (1, 2, 8, 100)
    )
    synchronous = estimate_mode(given, USUAL["synchronous"])

    assert all_together.traffic == more.traffic == synchronous.traffic
    assert single.traffic.down == pytest.approx(8 * synchronous.traffic.down, rel=0.01)
    assert pairs.traffic.down == pytest.approx(4 * synchronous.traffic.down, rel=0.01)
    assert single.traffic.up == pytest.approx(synchronous.traffic.up, rel=0.02)
    assert single.step_seconds > pairs.step_seconds > all_together.step_seconds


def test_a_ring_sends_each_gradient_twice_but_for_one_part() -> None:
    assert ring_bytes(1_000_000, 4) == 6_000_000
    assert ring_bytes(1_000_000, 1) == 0


# In proportion.


@given(given=PLAUSIBLE, mode=WITH_ROUNDS)
def test_more_bits_never_send_fewer_bytes(given: Inputs, mode: Mode) -> None:
    sparse, four, eight = (
        estimate_mode(given, replace(mode, bits=bits)).traffic for bits in (0, 4, 8)
    )

    assert sparse.up <= four.up <= eight.up
    assert sparse.down <= four.down <= eight.down


@given(given=PLAUSIBLE, mode=WITH_ROUNDS, every=st.integers(1, 50_000))
def test_with_half_as_many_rounds_a_step_sends_and_waits_half_as_much(
    given: Inputs, mode: Mode, every: int
) -> None:
    often, rarely = (estimate_mode(given, replace(mode, every=each)) for each in (every, 2 * every))

    assert rarely.traffic.up == pytest.approx(often.traffic.up / 2)
    assert rarely.traffic.down == pytest.approx(often.traffic.down / 2)
    assert rarely.link_seconds == pytest.approx(often.link_seconds / 2)
    assert rarely.times_fewer == pytest.approx(2 * often.times_fewer)
    assert rarely.phases == often.phases
    assert rarely.step_seconds - given.step_seconds == pytest.approx(
        (often.step_seconds - given.step_seconds) / 2, rel=1e-3
    )


@given(given=PLAUSIBLE, mode=WITH_ROUNDS, rate=st.floats(1e5, 1e11))
def test_the_masters_link_carries_what_those_of_all_workers_do(
    given: Inputs, mode: Mode, rate: float
) -> None:
    alike = replace(given, link=rate, link_up=rate, master_link=rate)
    found = estimate_mode(alike, mode)

    of_each = given.workers * found.link_seconds / given.masters
    assert found.master_link_seconds == pytest.approx(of_each)
    assert found.step_seconds >= given.step_seconds + found.master_link_seconds / SLACK


@given(
    given=PLAUSIBLE,
    mode=WITH_ROUNDS,
    factor=st.floats(1.0, 50.0),
    name=st.sampled_from(["link", "link_up", "master_link"]),
)
def test_a_quicker_link_never_makes_a_step_longer(
    given: Inputs, mode: Mode, factor: float, name: str
) -> None:
    quicker = replace(given, **{name: getattr(given, name) * factor})

    assert estimate_mode(quicker, mode).samples >= estimate_mode(given, mode).samples / SLACK


@given(given=PLAUSIBLE, mode=WITH_ROUNDS, samples=st.floats(0.01, 0.99))
def test_after_so_many_steps_and_no_fewer_a_round_leaves_the_fraction_asked_for(
    given: Inputs, mode: Mode, samples: float
) -> None:
    every = estimate_mode(given, mode).every_at(samples)
    assume(1 < every <= 50_000)

    assert estimate_mode(given, replace(mode, every=every)).samples >= samples / SLACK
    assert estimate_mode(given, replace(mode, every=every - 1)).samples <= samples * SLACK


@given(given=PLAUSIBLE)
def test_sharing_costs_here_what_the_estimate_says_where_all_wait(given: Inputs) -> None:
    found = estimate_mode(given, USUAL["sharing"])

    seconds = {each.name: each.seconds for each in estimate(given).resources}
    assert found.samples == pytest.approx(estimate(given).in_step)
    assert found.phases == ()
    assert found.link_seconds == max(seconds["worker's link, up"], seconds["worker's link, down"])
    assert found.master_link_seconds == max(
        seconds["master's link, in"], seconds["master's link, out"]
    )


def test_the_usual_modes_are_there_and_averaging_with_4_bits() -> None:
    assert [str(mode) for mode in USUAL_MODES if mode != USUAL[mode.name]] == ["averaging(bits=4)"]
    assert set(USUAL.values()) < set(USUAL_MODES)


# Beside the codec.

ELEMENTS = 1_000_000


@pytest.mark.parametrize("mode", ["synchronous(bits=8)", "synchronous(bits=4)"])
def test_a_dense_contribution_is_at_most_as_large_as_estimated(mode: str) -> None:
    random = np.random.default_rng(0)
    magnitude_max = parse_mode(mode).magnitude_max
    assert magnitude_max is not None
    sizes = {}
    for name, change in (
        ("spread evenly", random.uniform(-1e-3, 1e-3, ELEMENTS)),
        ("mostly small", random.standard_t(3, ELEMENTS) * 1e-3),
    ):
        feedback = LocalFeedback(change.astype(np.float32), Replica.zeros(ELEMENTS))
        bodies = encode_dense(
            feedback, ranges_of([ELEMENTS]), magnitude_max, bytes_max=UPDATE_BYTES_MAX
        )
        sizes[name] = sum(map(len, bodies))

    most = estimate_mode(inputs(parameters=ELEMENTS), parse_mode(mode)).sent_bytes
    assert sizes["mostly small"] < sizes["spread evenly"]
    assert 0.9 * most < sizes["spread evenly"] < 1.001 * most


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_a_sparse_result_is_as_large_as_the_mean_of_a_round(density: float) -> None:
    workers, random = 4, np.random.default_rng(0)
    total = RoundSum(ELEMENTS, ranges_of([ELEMENTS]))
    for _ in range(workers):
        index = np.flatnonzero(random.random(ELEMENTS) < density).astype(np.uint32)
        count = random.choice([-1, 1], index.size).astype(np.int32)
        body = pack_update(Update(0, ELEMENTS, 1000, index, count))
        total.add(decode(body, ELEMENTS))

    (mean,) = total.take_mean(workers, None)

    given = inputs(parameters=ELEMENTS, density=density, workers=workers)
    found = estimate_mode(given, parse_mode("synchronous(bits=0)"))
    size = link_bytes(len(pack_update(mean))) + ack_link_bytes(given.update_bytes)
    assert found.traffic.down == pytest.approx(size, rel=0.1)
