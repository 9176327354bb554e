"""What an estimate promises of its arithmetic."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire.cli.estimate.demands import Kind, demands
from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.model import estimate, keeps_up
from gradwire.cli.estimate.sizes import link_bytes
from gradwire.errors import UsageError
from gradwire_protocol.limits import STREAMS_MAX
from support.estimating import COSTS, PLAUSIBLE, inputs
from support.wording import naming

FACTOR = st.floats(1.0, 50.0)
SLACK = 1 + 1e-9


@given(given=PLAUSIBLE)
def test_fractions_are_fractions_and_ages_are_at_least_a_step(given: Inputs) -> None:
    result = estimate(given)

    for fraction in (result.samples, result.sent, result.in_step):
        assert 0 < fraction <= SLACK
    assert 0 <= result.one_by_one <= 1
    assert result.delay_steps >= 1.5
    assert result.in_step <= result.samples * SLACK
    assert result.step_seconds >= given.step_seconds
    assert result.speed_up == result.inputs.workers * result.samples


@given(given=PLAUSIBLE)
def test_the_limit_is_what_has_the_highest_load_of_all_that_is_short(given: Inputs) -> None:
    result = estimate(given)
    short = [r for r in result.resources if r.is_short]

    if short:
        assert result.limit.load == max(r.load for r in short)
        assert result.as_sent < 1 or given.workers == 1  # of whose updates there is no receiver
    else:
        training = [r for r in result.resources if r.kind is Kind.TRAINS]
        assert result.limit.load == max(r.load for r in training)


@given(given=PLAUSIBLE)
def test_where_everything_keeps_up_every_update_arrives_as_it_was_sent(given: Inputs) -> None:
    result = estimate(given)

    if keeps_up(given):
        assert result.as_sent == 1
        assert not result.limit.is_short
        assert result.in_step == pytest.approx(result.samples)
    else:
        assert result.in_step < result.samples * SLACK
        assert result.as_sent < SLACK


@given(given=PLAUSIBLE, more=st.integers(1, 100))
def test_more_workers_never_scale_better_where_all_wait(given: Inputs, more: int) -> None:
    larger = replace(given, workers=given.workers + more)

    assert estimate(larger).in_step <= estimate(given).in_step * SLACK
    assert not keeps_up(larger) or keeps_up(given)


@given(given=PLAUSIBLE, factor=FACTOR)
def test_denser_updates_never_scale_better_where_all_wait(given: Inputs, factor: float) -> None:
    denser = replace(given, density=min(given.density * factor, 1.0))

    assert estimate(denser).in_step <= estimate(given).in_step * (1 + 1e-6)


@given(given=PLAUSIBLE, factor=FACTOR, name=st.sampled_from(["link", "link_up", "master_link"]))
def test_a_quicker_link_never_makes_anything_worse(given: Inputs, factor: float, name: str) -> None:
    quicker = replace(given, **{name: getattr(given, name) * factor})

    assert estimate(quicker).in_step >= estimate(given).in_step / SLACK
    assert keeps_up(quicker) or not keeps_up(given)


@given(given=PLAUSIBLE, factor=FACTOR)
def test_longer_steps_scale_better(given: Inputs, factor: float) -> None:
    longer = replace(given, step_seconds=given.step_seconds * factor)

    assert estimate(longer).in_step >= estimate(given).in_step / SLACK


@given(given=PLAUSIBLE, later=st.floats(0.0, 10.0))
def test_distance_makes_updates_older_and_nothing_else(given: Inputs, later: float) -> None:
    far = replace(given, rtt_seconds=given.rtt_seconds + later)
    near_result, far_result = estimate(given), estimate(far)

    assert far_result.samples == near_result.samples
    assert far_result.as_sent == near_result.as_sent
    assert far_result.delay_steps == pytest.approx(
        near_result.delay_steps + later / near_result.step_seconds
    )


@given(given=PLAUSIBLE)
def test_a_worker_alone_pays_for_encoding_and_for_nothing_else(given: Inputs) -> None:
    alone = replace(given, workers=1, link_up=1e12, master_link=1e12)
    assume(keeps_up(alone))
    result = estimate(alone)

    encode, apply = result.resources[:2]
    assert apply.seconds == 0
    assert result.step_seconds == pytest.approx(alone.step_seconds + encode.seconds)
    assert result.staleness == 0


def test_links_carry_an_update_up_and_those_of_all_peers_down() -> None:
    given = inputs(workers=5, density=0.01)
    by_name = {r.name: r.seconds for r in demands(given)}
    one = 8 * link_bytes(given.update_bytes)

    assert by_name["worker's link, up"] == pytest.approx(one / 1e8, rel=0.01)
    assert by_name["worker's link, down"] == pytest.approx(4 * one / 1e8, rel=0.01)
    assert by_name["master's link, in"] == pytest.approx(5 * one / 1e9, rel=0.02)
    assert by_name["master's link, out"] == pytest.approx(20 * one / 1e9, rel=0.01)


def test_masters_share_all_but_what_a_message_costs_whatever_its_size() -> None:
    one, four = ({r.name: r.seconds for r in demands(inputs(masters=n))} for n in (1, 4))
    given = inputs()
    fixed = 8 * (COSTS.master_update_seconds + 7 * COSTS.master_delivery_seconds)

    assert four["master's link, in"] == pytest.approx(one["master's link, in"] / 4)
    assert four["master's link, out"] == pytest.approx(one["master's link, out"] / 4)
    assert four["master's processor"] - fixed == pytest.approx(
        (one["master's processor"] - fixed) / 4
    )
    assert four["worker's link, down"] == one["worker's link, down"]
    assert four["encode"] == one["encode"]
    assert four["decode and apply"] - one["decode and apply"] == pytest.approx(
        3 * 7 * COSTS.apply_seconds
    )
    assert given.masters == 1


def test_what_a_master_with_relays_takes_grows_with_relays_and_not_with_workers() -> None:
    def seconds(**changed: int) -> dict[str, float]:
        given = inputs(parameters=500_000, density=0.002, **changed)
        return {resource.name: resource.seconds for resource in demands(given)}

    few, many = seconds(workers=64, relays=8), seconds(workers=4096, relays=64)
    alone = seconds(workers=64)

    assert few["master's processor"] < alone["master's processor"] / 8
    assert many["master's processor"] / 4096 < 1.5 * few["master's processor"] / 64
    for link in ("master's link, in", "master's link, out"):
        assert many[link] / 4096 < few[link] / 64
    # What 63 others change is one message, and not 63.
    assert few["worker's network thread"] < alone["worker's network thread"] / 8
    assert few["encode"] == alone["encode"]


def test_a_relay_for_each_worker_merges_nothing() -> None:
    given = inputs(relays=8)

    assert given.sum_bytes(1) == given.update_bytes
    assert given.sum_hits(1) == pytest.approx(given.hits)


def test_relays_on_lines_that_are_too_slow_send_sums_of_several_steps() -> None:
    enough, slow = (
        estimate(inputs(workers=32, relays=4, link=1e10, master_link=r)) for r in (1e10, 1e8)
    )

    assert enough.one_by_one == 1
    assert slow.limit.kind is not Kind.PUTS_OFF
    assert 0 < slow.one_by_one < 1
    assert slow.sent == 1
    assert slow.delay_steps > enough.delay_steps
    assert slow.samples >= enough.samples


def test_a_slow_line_upwards_puts_updates_off_in_proportion() -> None:
    given = inputs(workers=2, link_up=1e6)
    result = estimate(given)

    assert result.limit.name == "worker's link, up"
    assert result.one_by_one == 1
    seconds_of_one = result.limit.seconds
    assert result.sent == pytest.approx(result.step_seconds / seconds_of_one)
    # What waits in the outbox is what makes updates old.
    assert result.delay_steps > 60 * seconds_of_one / result.step_seconds


def test_a_slow_line_downwards_has_updates_added_up_and_none_put_off() -> None:
    result = estimate(inputs(link=2e6))

    assert result.limit.name == "worker's link, down"
    assert result.sent == 1
    assert 0 < result.one_by_one < 0.5


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"step_seconds": 0.0}, ("--step-seconds=0 s", 0)),
        ({"parameters": 0}, ("--parameters=0", 1)),
        ({"density": 1.5}, ("--density=1.5", 1)),
        ({"workers": 0}, ("--workers=0", 1)),
        ({"link": 10.0}, ("--link=10 bit/s", 1000)),
        ({"link_up": 1e15}, ("--link-up=1e+15 bit/s",)),
        ({"master_link": 0.0}, ("--master-link=0 bit/s",)),
        ({"rtt_seconds": 100.0}, ("--rtt=100 s", "60 s")),
        ({"relays": -1}, ("--relays=-1", STREAMS_MAX)),
        ({"masters": 0}, ("--masters=0",)),
        ({"masters": 257}, ("--masters=257", 256)),
        ({"parameters": 10, "density": 0.01}, ("--density=0.01", "10 parameters")),
    ],
)
def test_what_makes_no_sense_is_refused_by_name_and_limit(
    changed: dict[str, float], named: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError, match=naming(*named)):
        inputs(**changed)
