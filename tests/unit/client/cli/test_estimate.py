"""``gradwire estimate``: the formulas, with values worked out by hand, and the command."""

import json
import re
from typing import Any

import numpy as np
import pytest

from gradwire.cli.app import EXIT_USAGE, main
from gradwire.cli.estimate import Estimate, Inputs, estimate
from gradwire.errors import UsageError
from gradwire_codecs import Update
from gradwire_codecs.format.update import pack_update
from gradwire_protocol.messages.modes.mode import parse_mode
from support.wording import naming

MILLION = 1_000_000


def estimated(mode: str = "sharing", **changed: Any) -> Estimate:
    """Return an estimate of 1 M parameters and 4 workers on 100 Mbit/s, but for what is given."""
    usual = {
        "parameters": MILLION, "training": 0.1, "workers": 4, "link": 1e8, "rtt": 0.01,
        "density": 0.5,
    }  # fmt: skip
    return estimate(Inputs(mode=parse_mode(mode), **usual | changed))


def values_of(found: Estimate, *names: str) -> list[float]:
    return [found.values[name] for name in names]


def test_workers_that_share_updates_wait_for_what_comes_late() -> None:
    # H(0.5) is 1 bit, so an update has 10^6 x 1.5 / 8 bytes. Scanning takes 0.5 ms, and four
    # updates of half a million elements 30 ms. 4 x 4 x 187,500 x 1.07 bytes are 3.21 MB.
    found = estimated()

    assert values_of(found, "message", "codec", "bytes") == pytest.approx([187_500, 0.0305, 3.21e6])
    assert values_of(found, "computing", "line") == pytest.approx([0.1305, 0.2668])
    assert values_of(found, "step", "waiting") == pytest.approx([0.3973, 0.6715], rel=1e-3)
    assert values_of(found, "efficiency", "speed_up") == pytest.approx([0.2517, 1.0068], rel=1e-3)


def test_nobody_waits_for_what_comes_in_time() -> None:
    # The line takes 3.21 MB x 8 / 1 Gbit/s and a round trip, 35.7 ms of 130.5.
    found = estimated(link=1e9)

    assert found.values["line"] == pytest.approx(0.03568)
    assert values_of(found, "step", "waiting") == pytest.approx([0.1305, 0])


def test_all_of_a_round_is_waited_for() -> None:
    # A contribution has 1 MB; 4 go up and 4 results come down: 8.56 MB, 684.8 ms and 10 of round
    # trip. Two times 10^6 elements take 2 ms.
    found = estimated("averaging(every=10, bits=8)")

    assert values_of(found, "message", "codec", "line") == pytest.approx([1e6, 0.002, 0.6948])
    assert values_of(found, "computing", "step") == pytest.approx([0.1002, 0.16968])
    assert found.values["bytes"] == pytest.approx(856_000)


def test_the_state_of_optimizers_goes_with_the_parameters() -> None:
    found = estimated("averaging(every=10, bits=4, optimizer_state=True)")

    assert found.values["message"] == pytest.approx(MILLION * (4 + 16) / 8)


def test_streams_send_a_part_while_training_goes_on() -> None:
    # A quarter of the parameters every second step: 2.14 MB, 171.2 ms and 10 of round trip.
    quick = estimated("diloco(every=8, streams=4)")
    slow = estimated("diloco(every=8, streams=4)", link=5e7)

    assert values_of(quick, "message", "every", "line") == pytest.approx([250_000, 2, 0.1812])
    assert quick.values["step"] == quick.values["computing"] == pytest.approx(0.10025)
    assert slow.values["step"] == pytest.approx((0.3424 + 0.01) / 2)


def test_a_central_master_sends_each_result_to_all() -> None:
    one, all_ = (estimated(f"central(gradients_per_update={n})") for n in (1, 8))

    assert values_of(one, "received", "bytes") == pytest.approx([4, 4 * 5 * 1.07e6])
    assert values_of(all_, "received", "bytes") == pytest.approx([1, 4 * 2 * 1.07e6])


def test_a_sparse_result_is_as_large_as_all_contributions() -> None:
    found = estimated("diloco(every=10, bits=0)")

    assert values_of(found, "message", "received") == pytest.approx([187_500, 4])


def test_ddp_is_a_ring_that_hides_behind_the_step() -> None:
    # Each of 4 workers sends 1.5 x 4 MB, which takes 480 ms at 100 Mbit/s.
    assert values_of(estimated(), "ddp_bytes", "ddp_step") == pytest.approx([24e6, 0.48])
    assert estimated(link=1e9).values["ddp_step"] == 0.1


@pytest.mark.parametrize(
    ("changed", "is_worth_it"),
    [
        ({"density": 0.01}, True),
        ({"density": 0.01, "link": 1e10}, False),  # DDP waits for nothing either
        ({"density": 0.01, "link": 1e5}, False),  # one worker alone does more
    ],
)
def test_it_is_worth_it_where_ddp_and_one_worker_do_less(
    changed: dict[str, Any], is_worth_it: bool
) -> None:
    found = estimated("sharing", **changed)

    assert found.values["is_worth_it"] == is_worth_it
    assert found.verdict.startswith("Worth it" if is_worth_it else "Not worth it")


def test_workers_that_mostly_wait_get_a_hint() -> None:
    assert "They mostly wait" in estimated().verdict
    assert "They mostly wait" not in estimated(link=1e9).verdict


def test_a_line_has_its_formula_and_the_formula_with_numbers() -> None:
    assert "received = workers - 1 = 4 - 1 = 3" in estimated().lines
    assert (
        "line = workers x (1 + received) x message x 1.07 x 8 / link + rtt = "
        "4 x (1 + 3) x 188 KB x 1.07 x 8 / 100 Mbit/s + 10 ms = 267 ms"
    ) in estimated().lines


@pytest.mark.parametrize("density", [0.0003, 0.003, 0.03, 0.3, 0.6])
def test_an_update_is_nearly_as_large_as_the_encoder_makes_it(density: float) -> None:
    random = np.random.default_rng(0)
    index = np.flatnonzero(random.random(MILLION) < density).astype(np.uint32)
    count = random.choice([-1, 1], index.size).astype(np.int32)
    encoded = pack_update(Update(0, MILLION, 1, index, count))

    # A header has some 30 bytes.
    expected = pytest.approx(len(encoded), rel=0.03, abs=40)
    assert estimated(density=density).values["message"] == expected


@pytest.mark.parametrize(
    ("option", "changed"),
    [
        ("--parameters", {"parameters": 0}),
        ("--step-seconds", {"training": 0}),
        ("--workers", {"workers": 1}),
        ("--link", {"link": 1}),
        ("--rtt", {"rtt": 61}),
        ("--density", {"density": 1.5}),
    ],
)
def test_a_value_beyond_its_limits_is_refused(option: str, changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=naming(option, next(iter(changed.values())))):
        estimated("sharing", **changed)


USUAL = ("estimate", "--step-seconds", "100ms", "--parameters", "14.6M", "--link", "100Mbit")


def test_it_prints_the_verdict_and_a_line_for_each_formula(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*USUAL, "--workers", "4"]) == 0

    verdict, *lines = capsys.readouterr().out.splitlines()
    assert verdict.startswith("Worth it: 4 workers")
    assert all(line.count(" = ") == 3 for line in lines)


def test_json_has_the_inputs_and_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--mode", "averaging(every=5)", "--rtt", "20ms", "--density", "0.01", "--json"]

    assert main([*USUAL, *options]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["verdict"].startswith("Not worth it: 8 workers")
    assert (found["parameters"], found["training"], found["link"]) == (14_600_000, 0.1, 1e8)
    assert (found["rtt"], found["density"], found["every"]) == (0.02, 0.01, 5)
    assert found["step"] > found["computing"] > 0.1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["estimate", "--parameters", "1M"], ["--step-seconds"]),
        ([*USUAL, "--mode", "gossip"], ["gossip"]),
        ([*USUAL, "--rtt", "soon"], ["--rtt"]),
    ],
)
def test_wrong_usage_is_named(
    arguments: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == EXIT_USAGE

    assert re.search(naming(*named), capsys.readouterr().err, re.DOTALL)
