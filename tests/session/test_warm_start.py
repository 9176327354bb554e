"""Warm start against a real master on loopback: who waits in `join`, and until when."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from gradwire import DeadlineError, Session
from gradwire_codecs import TargetDensity, WarmUp
from gradwire_codecs.arrays import Float32Array
from support.local_master import LocalMaster
from support.sessions import join, zeros
from support.waiting import SOON, wait_until
from support.wording import naming

STEPS = 5


def steps(session: Session, target: Float32Array, n: int = 1) -> None:
    for _ in range(n):
        target[0] += 0.5
        session.step()


def warm(master: LocalMaster, target: Float32Array, **options: object) -> Session:
    return join(master, target, **{"warm_up_workers": 1, "warm_up_steps": STEPS, **options})


def test_others_wait_in_join_until_the_first_worker_has_made_the_first_steps(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gradwire.join")
    mine, theirs = zeros(), zeros()
    first = warm(master, mine)
    with ThreadPoolExecutor(1) as pool:
        joining: Future[Session] = pool.submit(warm, master, theirs)
        first.wait(2, timeout=SOON)  # who waits takes part
        steps(first, mine, STEPS - 1)
        wait_until(lambda: theirs[0] == 0.5 * (STEPS - 1), "what comes to be applied")
        assert not joining.done()

        steps(first, mine)
        joining.result(SOON)

    assert theirs.tolist() == mine.tolist()
    assert "begin to train: 5 of 5 updates were made" in caplog.messages


def test_when_one_that_trains_is_gone_the_next_takes_its_place(master: LocalMaster) -> None:
    first = warm(master, zeros())
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(warm, master, zeros())]
        first.wait(2, timeout=SOON)
        joining.append(pool.submit(warm, master, zeros()))
        first.wait(3, timeout=SOON)

        first.close()
        second = joining[0].result(SOON)
        assert not joining[1].done()
        assert second.rank == 1

        second.close()
        third = joining[1].result(SOON)

    assert third.rank == 2


def test_a_run_in_which_nothing_comes_is_not_waited_for_for_ever(master: LocalMaster) -> None:
    first = warm(master, zeros())

    for seconds in (SOON / 40, SOON):  # a machine may take the former to let it in
        with pytest.raises(DeadlineError) as waited:
            warm(master, zeros(), join_timeout_seconds=seconds)
        if "no update" in str(waited.value):
            break

    named = ("no update", f"{seconds:g} s", "0 of 5 updates", "ranks 0")
    assert str(waited.value) == naming(*named)
    wait_until(lambda: len(first.workers) == 1, "it to be gone")


# Denser updates.


def test_the_first_updates_are_denser_and_a_late_worker_s_are_not(master: LocalMaster) -> None:
    elements, n = 4_000, 40
    random = np.random.default_rng(1)
    mine = np.zeros(elements, np.float32)
    first = join(master, mine, threshold=WarmUp(TargetDensity(0.01), 0.2, n))
    densities = []
    for _ in range(3 * n):
        first.push(random.normal(0, 1e-3, elements).astype(np.float32))
        densities.append(first.stats.density)
    wait_until(lambda: first.stats.updates_delivered == first.stats.updates_sent, "its updates")
    late = join(
        master, np.zeros(elements, np.float32), threshold=WarmUp(TargetDensity(0.01), 0.2, n)
    )
    late.push(random.normal(0, 1e-3, elements).astype(np.float32))

    assert densities[0] == pytest.approx(0.2, rel=0.1)
    assert np.mean(densities[: n // 4]) > 3 * np.mean(densities[-n:])
    assert late.stats.density == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize(("options", "ratio"), [({}, 2**0.5), ({"target_density": 0.01}, 1.0)])
def test_by_default_more_workers_send_sparser_updates(
    master: LocalMaster, options: dict[str, object], ratio: float
) -> None:
    """The threshold rises by as much as the density has to fall: from 2 to 4."""
    elements = 1_000
    random = np.random.default_rng(1)
    session = join(
        master, np.zeros(elements, np.float32), threshold=None, warm_up_steps=0, **options
    )
    trained = random.normal(0, 1e-3, elements).astype(np.float32)
    session.push(trained)
    alone = session.stats.threshold

    _others = [join(master, np.zeros(elements, np.float32)) for _ in range(3)]
    session.wait(4)
    session.push(trained)

    # The first update met its density, so it moved the threshold by next to nothing.
    assert session.stats.threshold == pytest.approx(alone * ratio, rel=0.02)


def test_without_first_steps_nobody_waits_for_them(master: LocalMaster) -> None:
    first, second = (warm(master, zeros(), warm_up_steps=0) for _ in range(2))

    assert [first.rank, second.rank] == [0, 1]
