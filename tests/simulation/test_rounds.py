"""Modes with rounds in histories with every fault, and rules of rounds that are broken.

What has to be true besides (`support.round_accounts`): what results are said to contain, they
contain once, whoever was killed in which phase of a round. ``python tests/simulation SEED --mode
'averaging(every=2, round_timeout_seconds=1)'`` shows a history.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from gradwire.participant.ahead import Ahead
from gradwire.participant.contributing import Contributing
from gradwire.participant.gradients import Gradients
from gradwire.worker.admission import Admission
from gradwire.worker.own_updates import OwnUpdates
from gradwire_codecs import Update
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.optimizer_sum import OptimizerSum
from gradwire_codecs.replica.outer_step import OuterSum
from gradwire_codecs.replica.round_sum import RoundSum
from gradwire_codecs.replica.state_sum import StateSum
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.checkpoint.format import parse
from gradwire_protocol.messages.kinds import WORKERS_MAX, EndCode
from gradwire_protocol.messages.modes.mode import (
    AVERAGING,
    DILOCO,
    SYNCHRONOUS,
    USUAL,
    Mode,
    parse_mode,
)
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.checkpoints.writer import Copy
from gradwire_server.config import MasterConfig
from gradwire_server.state.run import Run
from gradwire_server.updates.rounds import Rounds
from support.keyed import RUN_KEY
from support.network import Link, link_of
from support.playing import HistoryFailed, play
from support.tiers import IS_DEEP, count
from support.training import MASTER, SimulatedRun
from support.two_masters import PairedRun
from support.updates import single

WITH_STATE = parse_mode(
    "averaging(every=2, bits=4, optimizer_state=Adam[exp_avg exp_avg_sq; step],"
    " round_timeout_seconds=1)"
)
IN_STREAMS = replace(USUAL[DILOCO], every=4, streams=2, round_timeout_seconds=1)
MODES = (
    Mode(AVERAGING, every=2, round_timeout_seconds=1),
    Mode(SYNCHRONOUS, bits=4, round_timeout_seconds=1),
    Mode(AVERAGING, every=3, bits=8, round_timeout_seconds=3),
    WITH_STATE,
    replace(USUAL[DILOCO], every=2, round_timeout_seconds=1),
    IN_STREAMS,
    parse_mode("diloco(every=2, outer_lr=0.5, sparse=1/4, round_timeout_seconds=1)"),
    parse_mode("central(optimizer=adamw, round_timeout_seconds=1)"),
    parse_mode(
        "central(momentum=0.9, gradients_per_update=3, staleness=inverse, bits=4,"
        " round_timeout_seconds=2)"
    ),
)
HISTORIES = count(1_000, quick=15, of="histories of each mode with rounds")
BATCH = 5
LONG = count(10, quick=1, of="long histories of a mode with rounds")


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_whatever_goes_wrong_each_contribution_counts_once(mode: Mode, first: int) -> None:
    for seed in range(first, first + BATCH):
        play(seed, mode=mode)


@pytest.mark.parametrize("seed", range(LONG))
def test_a_long_history(seed: int) -> None:
    play(seed, "long", MODES[seed % len(MODES)])


def test_rounds_are_closed_with_all_and_by_the_clock() -> None:
    closed = timed_out = 0
    for seed in range(3):
        history = play(seed, mode=MODES[0])
        closed += history.round_accounts.rounds
        timed_out += int(history.sample("rounds_timed_out_total"))

    assert closed > timed_out > 0


# A master and its standby.


@pytest.mark.seeds(30)
def test_a_standby_goes_on_with_the_rounds(seed: int) -> None:
    random = Random(seed)
    run = PairedRun(seed, link_of(random), elements=random.choice([20, 400]))
    run.mode = MODES[seed % len(MODES)]
    with run.round_accounts.watching(lambda: run.ledger):
        run.begin(random.randint(2, 4))
        run.network.after(random.uniform(0, 3), run.kill_primary)
        run.train(10, interval=0.2)
        run.network.run(lambda: run.standby.terms.in_charge, seconds=60)
        run.wait_until_all_are_back(seconds=200)
        run.train(3)
        run.finish_all()


def have_the_standby_take_over(run: PairedRun) -> None:
    """Kill the primary, and wait until all workers are with the standby."""
    run.kill_primary()
    run.network.run(lambda: run.standby.terms.in_charge, seconds=30)
    run.wait_until_all_are_back(seconds=200)


# The outer optimizer.


def last_step(run: Run | None) -> list[int]:
    """Return the last step of a master's outer optimizer, from which the next one follows."""
    assert run is not None
    assert run.rounds is not None
    total = run.rounds._sum
    assert isinstance(total, OuterSum)
    return [int(each) for each in total._last]


EACH_STEP = replace(USUAL[DILOCO], every=1)
OUTER = EACH_STEP, replace(USUAL[DILOCO], every=3, streams=3)
"""Both contribute with each step."""


@pytest.mark.parametrize("trains_on", [True, False])
@pytest.mark.parametrize("mode", OUTER, ids=str)
def test_the_momentum_survives_a_killed_master(mode: Mode, *, trains_on: bool) -> None:
    config = MasterConfig(recovery_seconds=2.0, idle_timeout_seconds=3.0)
    run = SimulatedRun(5, Link(delay=0.005), elements=30, master=config, idle_timeout_seconds=3.0)
    run.mode = mode
    with run.round_accounts.watching(lambda: run.ledger):
        workers = run.join_and_wait(3)
        run.train(4)
        run.network.run(lambda: not run.master.unstable, seconds=60)
        before = last_step(run.master.run)
        assert any(before)

        run.lose_master(*workers)
        run.wait_until_all_are_back()

        assert last_step(run.master.run) == before
        if trains_on:
            run.train(2)
        run.finish()


@pytest.mark.parametrize("mode", OUTER, ids=str)
def test_the_momentum_is_in_checkpoints(mode: Mode) -> None:
    run = PairedRun(5, Link(delay=0.005), elements=30)
    run.mode = mode
    with run.round_accounts.watching(lambda: run.ledger):
        run.begin(3)
        run.train(4)
        run.network.run(lambda: not run.primary.unstable, seconds=60)
        expected = last_step(run.primary.run)
        assert any(expected)
        for master in (run.primary, run.standby):
            assert master.run is not None
            checkpoint, values, _ = parse(b"".join(Copy.make(master.run).pieces()))

            again = Run.resume(checkpoint, values)

            assert last_step(again) == expected
            assert again.replica.digest() == checkpoint.digest == master.run.replica.digest()
        run.finish_all()


# What the workers' optimizers keep.


# The master's optimizer.


def state_of(run: Run | None) -> tuple[int, list[np.ndarray[Any, np.dtype[np.float32]]]]:
    """Return how many steps a master's optimizer has made, and its state."""
    assert run is not None
    assert run.rounds is not None
    total = run.rounds._sum
    assert isinstance(total, OptimizerSum)
    return total.steps, [slot.copy() for slot in total._state]


def is_like(found: Any, expected: Any) -> bool:
    """Return whether a state is about the other one: it may be some results old, and rounded."""
    steps, slots = expected
    return found[0] == steps and all(
        np.corrcoef(mine, its)[0, 1] > 0.9 for mine, its in zip(found[1], slots, strict=True)
    )


ADAM = parse_mode("central(optimizer=adam, beta1=0.99)")


def test_the_optimizers_state_survives_a_killed_master() -> None:
    config = MasterConfig(recovery_seconds=2.0, idle_timeout_seconds=3.0)
    run = SimulatedRun(5, Link(delay=0.005), elements=30, master=config, idle_timeout_seconds=3.0)
    run.mode = ADAM
    with run.round_accounts.watching(lambda: run.ledger):
        workers = run.join_and_wait(3)
        run.train(10)
        run.network.run(lambda: not run.master.unstable, seconds=60)
        before = state_of(run.master.run)

        run.lose_master(*workers)
        run.wait_until_all_are_back()

        assert is_like(state_of(run.master.run), before)
        run.train(2)
        run.finish()


def test_the_optimizers_state_survives_with_the_standby() -> None:
    run = PairedRun(5, Link(delay=0.005), elements=30)
    run.mode = ADAM
    with run.round_accounts.watching(lambda: run.ledger):
        run.begin(3)
        run.train(10)
        run.network.run(lambda: not run.primary.unstable, seconds=60)
        before = state_of(run.primary.run)

        have_the_standby_take_over(run)

        assert is_like(state_of(run.standby.run), before)
        run.train(2)
        run.finish_all()


# Gradients that are not finished.


@pytest.mark.parametrize("may_return", [False, True])
def test_half_a_gradient_is_kept_as_long_as_its_worker_may_send_the_rest(
    *, may_return: bool
) -> None:
    run = SimulatedRun(5, elements=30, master=MasterConfig(rejoin_seconds=20.0))
    run.mode = ADAM
    run.join_and_wait(2)
    rogue = run.enter()
    rank = rogue.wait_for(Welcome).rank
    run.network.run_for(1.0)
    rounds = run.state.rounds
    assert rounds is not None
    rogue.say_update(rank, 1, pack_update(single(30, [3], [1])))
    run.network.run(lambda: rank in rounds._parts, seconds=1)

    if may_return:
        run.network.kill(rogue.host)
    else:
        rogue.end(EndCode.LEFT, "over")
    run.network.run(lambda: len(run.master.roster) == 2, seconds=100)
    run.train(3)
    assert (rank in rounds._parts) == may_return

    run.network.run_for(20.0)
    run.train(3)
    assert rank not in rounds._parts


# Workers that do not keep up.


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_results_are_added_up_for_who_does_not_keep_up(mode: Mode) -> None:
    config = MasterConfig(relay_backlog_bytes_max=6_000)
    run = SimulatedRun(3, Link(delay=0.005), elements=3_000, master=config, run_key=RUN_KEY)
    run.mode = mode
    with run.round_accounts.watching(lambda: run.ledger):
        run.join_and_wait(2)
        slow = run.observe()
        run.network.run(lambda: slow.live, seconds=60)
        run.network.set_link(MASTER, slow.name, Link(delay=0.005, rate=2_000, queue_bytes=20_000))
        run.train(30, interval=0.2)
        run.network.set_link(MASTER, slow.name, run.network.link)
        run.network.run(lambda: slow.sums > 0, seconds=60)
        run.finish()


# Rules that are broken are found.

Plant = Callable[[pytest.MonkeyPatch], None]


def one_of_two_is_not_added(patch: pytest.MonkeyPatch) -> None:
    add = RoundSum.add

    def first_of_two(self: RoundSum, update: Update) -> None:
        if len(update.index) % 2:
            add(self, update)

    patch.setattr(RoundSum, "add", first_of_two)


def who_contributes_nothing_is_divided_by(patch: pytest.MonkeyPatch) -> None:
    take_mean = RoundSum.take_mean

    def of_one_more(self: RoundSum, divisor: int, *limit: Any, **options: Any) -> list[Update]:
        return take_mean(self, divisor + 1, *limit, **options)

    patch.setattr(RoundSum, "take_mean", of_one_more)


def a_new_master_takes_what_was_contributed_for_contained(patch: pytest.MonkeyPatch) -> None:
    found_again = Admission.found_again

    def with_all(self: Admission, values: Any, accepted: int) -> None:
        found_again(self, values, self._own.sequence)

    patch.setattr(Admission, "found_again", with_all)


def contributions_are_forgotten_when_they_are_sent(patch: pytest.MonkeyPatch) -> None:
    delivered = OwnUpdates.on_delivered

    def and_forgotten(self: OwnUpdates, sequence: int, now: float | None = None) -> None:
        delivered(self, sequence, now)
        self.log.forget(sequence)

    patch.setattr(OwnUpdates, "on_delivered", and_forgotten)


def a_new_master_uses_the_rank_of_the_last_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("gradwire_server.master.rounds.new_rank", lambda versions, now: WORKERS_MAX)


def what_was_contributed_stays_in_the_parameters(patch: pytest.MonkeyPatch) -> None:
    def keeps(feedback: Any, bodies: Sequence[bytes]) -> None:
        return None

    patch.setattr("gradwire.participant.contributing.take_back", keeps)


def the_last_steps_are_not_contributed(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: Contributing) -> bool:
        self._rest_is_due = False
        return True

    patch.setattr(Contributing, "flush_on", nothing)


def half_a_gradient_is_added(patch: pytest.MonkeyPatch) -> None:
    add = Rounds.add

    def at_once(
        self: Rounds, rank: int, encoded: EncodedUpdate, update: Update, now: float
    ) -> None:
        add(self, rank, encoded, update, now)
        for part in self._parts.pop(rank, []):
            self._sum.add(part)

    patch.setattr(Rounds, "add", at_once)


def old_gradients_count_in_full(patch: pytest.MonkeyPatch) -> None:
    def none(self: Rounds, encoded: EncodedUpdate) -> int:
        return 0

    patch.setattr(Rounds, "staleness", none)


def a_gradient_is_of_the_parameters_after_it(patch: pytest.MonkeyPatch) -> None:
    based_on = Gradients._based_on
    patch.setattr(Gradients, "_based_on", lambda self: based_on(self) + 1)


def steps_are_added_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateSum, "add", RoundSum.add)


def what_is_in_flight_is_contributed_again(patch: pytest.MonkeyPatch) -> None:
    def stays(self: Ahead, fragments: Iterable[int] | None = None) -> None:
        self._added.clear()

    patch.setattr(Ahead, "step_back", stays)


FAULTS: list[tuple[Plant, str, int]] = [
    (one_of_two_is_not_added, "contributed: a mean is not the mean", 0),
    (who_contributes_nothing_is_divided_by, "contributed: a mean is not the mean", 0),
    (a_new_master_takes_what_was_contributed_for_contained, "waits: .* are not stable", 2),
    (contributions_are_forgotten_when_they_are_sent, "were sent and 0 are kept", 10),
    (a_new_master_uses_the_rank_of_the_last_one, "bits: result .* is another one", 11),
    (what_was_contributed_stays_in_the_parameters, "conservation: .* neither sent nor kept", 4),
]
"""What is planted, what a history that finds it says, and the seed of one that does."""


OF_DENSE: list[tuple[Plant, str, int]] = [
    (the_last_steps_are_not_contributed, "left: .* has finished with", 0),
]

OF_STATE: list[tuple[Plant, str, int]] = [
    (steps_are_added_up, "contributed: a mean is not the mean", 0),
]

OF_STREAMS: list[tuple[Plant, str, int]] = [
    (what_is_in_flight_is_contributed_again, "conservation: .* neither sent nor kept", 0),
]

OF_GRADIENTS: list[tuple[Plant, str, int]] = [
    (half_a_gradient_is_added, "contributed: the sum is another one", 7),
    (old_gradients_count_in_full, "contributed: the sum is another one", 7),
    (a_gradient_is_of_the_parameters_after_it, "is based on .* updates; there were", 0),
]


@pytest.mark.parametrize(
    ("plant", "says", "pinned", "mode"),
    [(*fault, MODES[0]) for fault in FAULTS]
    + [(*fault, MODES[2]) for fault in OF_DENSE]
    + [(*fault, WITH_STATE) for fault in OF_STATE]
    + [(*fault, IN_STREAMS) for fault in OF_STREAMS]
    + [(*fault, MODES[-1]) for fault in OF_GRADIENTS],
    ids=[
        plant.__name__
        for plant, _, _ in (*FAULTS, *OF_DENSE, *OF_STATE, *OF_STREAMS, *OF_GRADIENTS)
    ],
)
def test_a_broken_rule_is_found(
    plant: Plant,
    says: str,
    pinned: int,
    mode: Mode,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By its pinned seed in the quick tier; the deep tier searches all seeds from the first one."""
    plant(monkeypatch)
    complaints = []
    for seed in range(200) if IS_DEEP else [pinned]:
        try:
            play(seed, mode=mode, folder=tmp_path)
        except HistoryFailed as failure:
            complaints.append(str(failure).partition("\n")[0])
            if re.search(says, complaints[-1]):
                return
    raise AssertionError(f"seed {pinned} does not find it; complaints: {complaints}")
