"""One session with several masters, each of which has a part of the parameters."""

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradwire
from gradwire import DivergedError, Session, UsageError
from gradwire.participant.sharded import ShardedParticipant
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol import Keyring, Role
from gradwire_protocol.messages.modes.mode import Mode, parse_mode
from gradwire_server.config import MasterConfig
from support.local_master import LocalMaster
from support.sessions import HALF, RUN_KEY, finish, join
from support.waiting import wait_until
from support.wording import naming

ELEMENTS = 100


@pytest.fixture
def masters() -> Iterator[list[LocalMaster]]:
    """Run two masters, each of which gets a half."""
    with ExitStack() as stack:
        yield [stack.enter_context(LocalMaster()) for _ in range(2)]


def ramp() -> Float32Array:
    return np.arange(ELEMENTS, dtype=np.float32)


def two(
    masters: list[LocalMaster], **options: Any
) -> tuple[tuple[Session, Float32Array], tuple[Session, Float32Array]]:
    mine, theirs = ramp(), np.zeros(ELEMENTS, np.float32)
    one = join(masters, mine, **options)
    return (one, mine), (join(masters, theirs, **options), theirs)


def hears_in_all_parts(session: Session, rank: int) -> bool:
    """Return whether a session knows the clock of a worker: it waits for none that it has not."""
    participant = session._participant
    assert isinstance(participant, ShardedParticipant)
    return all(rank in shard.membership.clocks.latest for shard in participant.shards)


def step_until(session: Session, values: Float32Array, element: int, value: float) -> None:
    """Step until an element has a value that others have trained."""

    def has_come() -> bool:
        session.step()
        return float(values[element]) == value

    wait_until(has_come, f"element {element} to be {value}")


# Training.


def test_workers_train_each_other_in_both_parts_and_each_master_has_one(
    masters: list[LocalMaster],
) -> None:
    (one, mine), (other, theirs) = two(masters)
    assert theirs.tolist() == ramp().tolist(), "a worker that comes later has all of the first's"

    mine[[0, 99]] += 1.0
    one.step()
    theirs[[1, 98]] -= 2.0
    other.step()
    finish(one, other)

    expected = ramp()
    expected[[0, 99, 1, 98]] += [1.0, 1.0, -2.0, -2.0]
    assert mine.tolist() == theirs.tolist() == expected.tolist()
    assert one.digest() == other.digest()
    assert (one.rank, other.rank) == (0, 1)
    assert one.world_size == 2
    elements = [master.sample("gradwire_parameters") for master in masters]
    assert elements == [50, 50] or elements == [0, 0]  # a run that is over is forgotten


def test_a_model_whose_tensors_are_cut_trains(masters: list[LocalMaster]) -> None:
    torch.manual_seed(0)
    model, twin = (nn.Sequential(nn.Linear(9, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)) for _ in "12")
    begun = [parameter.detach().clone() for parameter in model.parameters()]
    adam = torch.optim.Adam(model.parameters(), 0.01)
    one = join(masters, model, optimizer=adam, threshold=None)
    other = join(masters, twin, optimizer=torch.optim.SGD(twin.parameters(), 0.1), threshold=None)

    def train(session: Session, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(20):
            optimizer.zero_grad()
            net(torch.randn(8, 9)).square().sum().backward()
            optimizer.step()
            session.step()

    train(one, model, adam)
    finish(one, other)

    mine, theirs = model.state_dict(), twin.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    trained = zip(model.parameters(), begun, strict=True)
    assert not any(torch.equal(now, before) for now, before in trained)


def test_who_comes_later_begins_with_the_state_of_an_optimizer(masters: list[LocalMaster]) -> None:
    weights, late = (nn.Parameter(torch.from_numpy(ramp())) for _ in range(2))
    adam, cold = torch.optim.Adam([weights]), torch.optim.Adam([late])
    one = join(masters, [weights], optimizer=adam, share_optimizer_state=True)
    weights.grad = torch.ones(ELEMENTS)
    adam.step()
    one.step()

    def has_joined() -> bool:
        one.step()  # the state is given at the end of a step
        return joining.done()

    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join, masters, [late], optimizer=cold, share_optimizer_state=True)
        wait_until(has_joined, "the other one to have joined")
    other = joining.result()

    assert torch.equal(cold.state[late]["exp_avg"], adam.state[weights]["exp_avg"])
    finish(one, other)


@pytest.mark.parametrize(
    "mode",
    [parse_mode("synchronous(bits=0)"), parse_mode("averaging(every=2)"), parse_mode("diloco()")],
    ids=str,
)
def test_modes_with_rounds_have_a_round_at_each_master(
    masters: list[LocalMaster], mode: Mode
) -> None:
    (one, mine), (other, theirs) = two(masters, mode=mode, threshold=2.0**-20)

    def train(session: Session, values: Float32Array) -> None:
        for _ in range(2 * mode.steps_between):
            values += 0.25 * (session.rank + 1)
            session.step()

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(train, one, mine), pool.submit(train, other, theirs)]:
            each.result(timeout=30)
    finish(one, other)

    assert mine.tolist() == theirs.tolist()
    assert (mine != ramp()).all()


def test_a_change_that_is_handed_over_is_divided(masters: list[LocalMaster]) -> None:
    (one, mine), (other, theirs) = two(masters)
    step = np.zeros(ELEMENTS, np.float32)
    step[[3, 97]] = 1.0

    assert one.push(step) == 2
    one.pull()
    pulled: list[gradwire.PeerUpdate] = []

    def both_have_come() -> bool:
        pulled.extend(other.pull())
        return len(pulled) == 2

    wait_until(both_have_come, "both parts to come")

    assert (theirs - ramp()).tolist() == step.tolist()
    assert {each.rank for each in pulled} == {0}
    with pytest.raises(UsageError, match="float32 with 100 elements"):
        one.push(step[:50])
    step[99] = np.nan
    before = mine.copy()
    with pytest.raises(gradwire.NonFiniteError):
        one.push(step)
    assert mine.tolist() == before.tolist()
    finish(one, other)


@pytest.mark.parametrize("optimizes", [False, True])
def test_changes_are_scaled_in_all_parts(masters: list[LocalMaster], optimizes: bool) -> None:
    """By the optimizer's learning rate for all of them, or else in each part."""
    weights = nn.Parameter(torch.from_numpy(ramp()))
    sgd = torch.optim.SGD([weights], 1.0)
    target: Any = [weights] if optimizes else weights.detach().numpy()
    session = join(masters, target, scale=0.5, optimizer=sgd if optimizes else None)
    step = np.zeros(ELEMENTS, np.float32)
    step[[0, 99]] = 1.0

    if optimizes:
        weights.grad = torch.from_numpy(-step)
        sgd.step()
    else:
        target += step
    session.step()

    assert (weights.detach().numpy() - ramp()).tolist() == (0.5 * step).tolist()
    session.close()


def test_a_step_waits_for_who_is_behind_in_any_part(masters: list[LocalMaster]) -> None:
    (one, mine), (other, theirs) = two(
        masters, staleness_bound=1, staleness_timeout_seconds=20.0, threshold=HALF
    )
    wait_until(lambda: hears_in_all_parts(one, other.rank), "one to hear of the other")
    for session, values in ((one, mine), (other, theirs)):
        values[[0, 99]] += 1.0
        session.step()

    def run_ahead() -> None:
        for _ in range(3):
            mine[[0, 99]] += 1.0
            one.step()

    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(run_ahead)
        wait_until(lambda: one.stats.steps_waited >= 1, "it to wait")
        assert not ahead.done()
        for _ in range(3):
            theirs[[0, 99]] += 1.0
            other.step()
        ahead.result(timeout=30)
    assert one.stats.steps_waited >= 1
    finish(one, other)
    assert mine.tolist() == theirs.tolist()


def test_a_run_of_which_one_master_knows_nothing_is_not_joined(masters: list[LocalMaster]) -> None:
    first, second = masters
    join(masters, ramp()).close()
    second.stop("it is started again")
    with LocalMaster(listen=second.address) as empty:
        with pytest.raises(UsageError) as refused:
            join([first, empty], np.zeros(ELEMENTS, np.float32))

        assert str(refused.value) == naming(
            f"begun at {first.address}, and not at {empty.address}", f"Restart {empty.address}"
        )


def test_an_observer_has_all_parts() -> None:
    with ExitStack() as stack:
        keyed = [stack.enter_context(LocalMaster(keyring=Keyring([RUN_KEY]))) for _ in range(2)]
        mine, seen = ramp(), np.zeros(ELEMENTS, np.float32)
        one = join(keyed, mine, key=RUN_KEY.worker_key("one"))
        observer = join(keyed, seen, key=RUN_KEY.worker_key("eyes", Role.OBSERVER))
        mine[[0, 99]] += 1.0
        one.step()

        step_until(observer, seen, 0, 1.0)
        step_until(observer, seen, 99, 100.0)
        finish(one, observer)
        assert observer.finished


def free_addresses(count: int) -> list[str]:
    """Return addresses where nobody listens now."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def test_a_worker_that_names_one_master_is_told_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gradwire.join")
    addresses = free_addresses(2)
    shards = ",".join(addresses)
    with ExitStack() as stack:
        known = [
            stack.enter_context(
                LocalMaster(MasterConfig(shard=f"{number}/2", shards=shards), listen=address)
            )
            for number, address in enumerate(addresses, start=1)
        ]
        mine, theirs = ramp(), np.zeros(ELEMENTS, np.float32)

        one, other = join(known[:1], mine), join(known[1:], theirs)
        mine[[0, 99]] += 1.0
        one.step()
        for master in known:
            master.sessions += [one, other]
        finish(one, other)

        assert mine.tolist() == theirs.tolist()
        assert caplog.messages.count(f"the parameters are shared by the masters at {shards}") == 2
        with pytest.raises(gradwire.RefusedError, match=r"has part 2 of 2 .* to have part 1 of 2"):
            join(known[::-1], ramp())


# Parts that are away.


def test_a_master_that_is_away_is_missed_for_its_part_alone(masters: list[LocalMaster]) -> None:
    (one, mine), (other, theirs) = two(masters)

    with masters[1].held_up():
        for _ in range(3):
            mine[[0, 99]] += 1.0
            one.step()
        step_until(other, theirs, 0, 3.0)
        assert theirs[99] == 99.0
    step_until(other, theirs, 99, 102.0)

    finish(one, other)
    assert mine.tolist() == theirs.tolist()


def test_the_end_of_a_master_ends_the_session_with_its_reason(masters: list[LocalMaster]) -> None:
    mine = ramp()
    session = join(masters, mine)

    masters[1].stop("it moves to another machine")

    errors: list[gradwire.GradwireError] = []

    def is_over() -> bool:
        try:
            session.step()
        except gradwire.GradwireError as error:
            errors.append(error)
        return bool(errors)

    wait_until(is_over, "the session to notice")
    assert naming("it moves to another machine") == str(errors[0])
    assert not session.is_open
    masters[0].wait_for_workers(0)


def test_where_one_part_has_diverged_nothing_is_sent_of_any(masters: list[LocalMaster]) -> None:
    (one, mine), _ = two(masters)

    mine[[0, 99]] = 1.0, np.nan
    with pytest.raises(DivergedError, match="nothing was sent"):
        one.step()
    with pytest.raises(DivergedError, match="nothing was sent"):
        one.push()
    assert one.stats.updates_sent == 0


def test_where_one_part_of_a_gradient_is_nan_nothing_is_sent_of_any(
    masters: list[LocalMaster],
) -> None:
    one, other = (nn.Parameter(torch.from_numpy(ramp())) for _ in range(2))
    mode = parse_mode("central(optimizer=sgd, lr=1.0)")
    first, second = (join(masters, [each], mode=mode) for each in (one, other))
    gradient = torch.ones(ELEMENTS)
    gradient[99] = torch.nan
    one.grad = gradient
    with pytest.raises(DivergedError, match="nothing was sent"):
        first.step()
    assert first.stats.updates_sent == 0

    def step(session: Session, weights: nn.Parameter, value: float) -> None:
        weights.grad = torch.full((ELEMENTS,), value)
        session.step()

    with ThreadPoolExecutor(2) as pool:
        steps = [pool.submit(step, first, one, 1.0), pool.submit(step, second, other, 3.0)]
        for each in steps:
            each.result(timeout=30)
    finish(first, second)
    np.testing.assert_allclose(one.detach().numpy() - ramp(), -4.0, atol=1e-4)
    assert torch.equal(one, other)


# What a session shows.


def test_what_is_counted_is_of_all_parts(masters: list[LocalMaster]) -> None:
    (one, mine), (other, _) = two(masters)
    mine[[0, 1, 99]] += 1.0
    one.step()
    wait_until(lambda: one.stats.updates_delivered == 2, "both parts to be delivered")

    stats = one.stats

    assert stats.steps == 1
    assert stats.updates_sent == 2
    assert stats.elements_sent == 3
    assert stats.density == pytest.approx(0.03)
    assert stats.transport == "udp"
    assert stats.bytes_sent > stats.bytes_encoded > 0
    finish(one, other)


def test_a_checkpoint_has_the_residual_of_all_parts(masters: list[LocalMaster]) -> None:
    mine = ramp()
    with join(masters, mine) as session:
        mine[[0, 99]] += [0.25, -0.25]
        session.step()
        saved, kept = session.state_dict(), mine.copy()
        session.close()

    again = ramp()
    with join(masters, again) as session:
        session.load_state_dict(saved)
        assert again.tolist() == kept.tolist()
        for wrong, said in (
            ({"version": 1}, "no 'residual'"),
            ({"version": 1, "shards": 3}, "several masters"),
            ({"version": 1, "shards": saved["shards"][:1]}, "50 parameters; .* 100"),
        ):
            with pytest.raises(UsageError, match=said):
                session.load_state_dict(wrong)
        torn = {**saved, "shards": [saved["shards"][0], {**saved["shards"][1], "steps": -1}]}
        with pytest.raises(UsageError, match="steps=-1"):
            session.load_state_dict(torn)
        assert again.tolist() == kept.tolist()
        session.close()


@pytest.mark.parametrize("feedback", ["shared", "local"])
@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (2, 3)])
def test_a_checkpoint_may_be_of_a_session_with_other_masters(
    feedback: Any, counts: tuple[int, int]
) -> None:
    mine = ramp()
    with ExitStack() as stack:
        masters = [stack.enter_context(LocalMaster()) for _ in range(counts[0])]
        session = join(masters, mine, feedback=feedback)
        mine[[0, 40, 60, 99]] += [0.25, -0.25, 0.125, -0.125]
        session.step()
        saved = session.state_dict()
        session.close()

    again = mine.copy()
    with ExitStack() as stack:
        masters = [stack.enter_context(LocalMaster()) for _ in range(counts[1])]
        session = join(masters, again, feedback=feedback)
        session.load_state_dict(saved)

        before, now = ([*state.get("shards", [state])] for state in (saved, session.state_dict()))
        assert (len(before), len(now)) == counts
        residual, expected = (
            np.concatenate([each["residual"] for each in states]) for states in (now, before)
        )
        assert np.flatnonzero(expected).tolist() == [0, 40, 60, 99]
        if feedback == "local":  # the run began with parameters that contain it
            expected[:] = 0
        assert residual.tolist() == expected.tolist()
        assert now[0]["policy"] == before[0]["policy"]
        session.close()


@pytest.mark.parametrize(
    "mode", ["central(optimizer=adam)", "diloco(every=4, streams=2)", "averaging(every=2)"]
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_checkpoint_is_loaded_in_every_mode(
    masters: list[LocalMaster], mode: str, count: int
) -> None:
    weights = nn.Parameter(torch.from_numpy(ramp()))
    session = join(masters[:count], [weights], mode=parse_mode(mode))
    weights.grad = torch.ones(ELEMENTS)
    session.load_state_dict(session.state_dict())
    session.close()


def test_an_evaluation_sees_the_shared_parameters_of_all_parts(masters: list[LocalMaster]) -> None:
    mine = ramp()
    session = join(masters, mine, feedback="local")
    mine[[0, 99]] += 0.25
    session.step()

    with session.paused(shared=True):
        assert mine.tolist() == ramp().tolist()

    assert (mine - ramp())[[0, 99]].tolist() == [0.25, 0.25]
    session.close()


def test_items_are_granted_once(masters: list[LocalMaster]) -> None:
    (one, mine), (other, theirs) = two(masters)
    trained: list[int] = []

    def train(session: Session, values: Float32Array) -> None:
        for item in session.items("train", 6):
            values[[0, 99]] += 1.0
            session.step()
            trained.append(item.index)

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(train, one, mine), pool.submit(train, other, theirs)]:
            each.result(timeout=30)
    finish(one, other)

    assert sorted(trained) == list(range(6))
    assert mine[0] == 6.0
    assert mine[99] == 105.0


@pytest.mark.parametrize("ends", [0, 1])
def test_who_waits_for_an_item_hears_of_the_end_of_a_master(
    masters: list[LocalMaster], ends: int
) -> None:
    (one, _), (other, _) = two(masters)
    held = one.items("train", 1)
    assert next(held).index == 0

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, other.items("train", 1))
        wait_until(lambda: other.stats.steps == 0 and not waiting.done(), "it to wait")
        masters[ends].stop("it moves")
        error = waiting.exception(timeout=30)

    assert isinstance(error, gradwire.ConnectionLostError)
    assert naming("it moves") == str(error)


# What cannot be.


def test_masters_in_another_order_have_another_model(masters: list[LocalMaster]) -> None:
    target = np.zeros(101, np.float32)
    session = join(masters, target)

    with pytest.raises(gradwire.RefusedError, match=r"array\[50:101\]"):
        join(masters[::-1], target.copy())

    session.close()


def test_a_worker_with_one_master_is_none_of_a_run_with_two(masters: list[LocalMaster]) -> None:
    session = join(masters, ramp())

    with pytest.raises(gradwire.RefusedError, match="array"):
        join(masters[:1], ramp())

    session.close()


@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("a:1,", "nothing before or behind a comma"),
        ("a:1, a:1", "names a:1 twice"),
        ("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "2 parameters cannot be divided among 3 masters"),
    ],
)
def test_masters_that_cannot_be_are_refused(master: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gradwire.join(np.zeros(2, np.float32), master=master, connect_timeout_seconds=1.0)


def test_a_second_master_that_does_not_answer_is_named(masters: list[LocalMaster]) -> None:
    masters[1].stop("not here")

    with pytest.raises(gradwire.UnreachableError, match=masters[1].address):
        join(masters, ramp(), connect_timeout_seconds=2.0)

    masters[0].wait_for_workers(0)


def test_all_workers_begin_with_the_parameters_of_one(
    masters: list[LocalMaster], caplog: pytest.LogCaptureFixture
) -> None:
    """All parts are those of the worker that begins the run, in whatever order workers come."""
    caplog.set_level(logging.INFO, "gradwire.join")
    targets = [np.full(ELEMENTS, float(i), np.float32) for i in range(6)]
    with ThreadPoolExecutor(len(targets)) as pool:
        sessions = list(pool.map(lambda target: join(masters, target), targets))

    assert {float(value) for target in targets for value in target} == {float(targets[0][0])}
    assert sorted(session.rank for session in sessions) == list(range(6))
    finish(*sessions)
