"""Warm start against a real master on loopback: who waits in `join`, and until when."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from gradwire import DeadlineError, Session, UsageError
from gradwire.settings.settings import Settings
from gradwire_codecs.arrays import Float32Array
from support.local_master import LocalMaster
from support.sessions import change, join, zeros
from support.waiting import wait_until

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
        first.wait(2, timeout=30)  # who waits takes part
        steps(first, mine, STEPS - 1)
        wait_until(lambda: theirs[0] == 0.5 * (STEPS - 1), "what comes to be applied")
        assert not joining.done()

        steps(first, mine)
        joining.result(30)

    assert theirs.tolist() == mine.tolist()
    assert "begin to train: 5 of 5 updates were made" in caplog.messages


def test_when_one_that_trains_is_gone_the_next_takes_its_place(master: LocalMaster) -> None:
    first = warm(master, zeros())
    with ThreadPoolExecutor(2) as pool:
        joining = [pool.submit(warm, master, zeros())]
        first.wait(2, timeout=30)
        joining.append(pool.submit(warm, master, zeros()))
        first.wait(3, timeout=30)

        first.close()
        second = joining[0].result(30)
        assert not joining[1].done()
        assert second.rank == 1

        second.close()
        third = joining[1].result(30)

    assert third.rank == 2


def test_a_late_worker_of_a_run_past_it_begins_at_once(master: LocalMaster) -> None:
    mine = zeros()
    first = warm(master, mine)
    steps(first, mine, STEPS)
    wait_until(lambda: first.stats.updates_delivered == STEPS, "the first steps")

    second = warm(master, zeros(), join_timeout_seconds=30.0)

    assert second.world_size == 2


def test_a_run_in_which_nothing_comes_is_not_waited_for_for_ever(master: LocalMaster) -> None:
    first = warm(master, zeros())

    with pytest.raises(DeadlineError, match=r"no update came for 3 s while .*0 of 5 updates were "
                                            r"made\. They are made by ranks 0 \("):  # fmt: skip
        warm(master, zeros(), join_timeout_seconds=3.0)

    wait_until(lambda: len(first.workers) == 1, "it to be gone")


def test_the_end_of_the_master_ends_the_wait() -> None:
    with ThreadPoolExecutor(1) as pool, LocalMaster() as master:
        first = warm(master, zeros())
        joining = pool.submit(warm, master, zeros())
        first.wait(2, timeout=30)

        master.stop("maintenance")

        assert "the master" in str(joining.exception(30))


# Denser updates.


def test_the_first_updates_are_denser_and_a_late_worker_s_are_not(master: LocalMaster) -> None:
    elements, n = 4_000, 40
    random = np.random.default_rng(1)
    options = {"threshold": None, "target_density": 0.01, "warm_up_density": 0.2}
    mine = np.zeros(elements, np.float32)
    first = join(master, mine, warm_up_steps=n, **options)
    densities = []
    for _ in range(3 * n):
        first.push(random.normal(0, 1e-3, elements).astype(np.float32))
        densities.append(first.stats.density)
    wait_until(lambda: first.stats.updates_delivered == first.stats.updates_sent, "its updates")
    late = join(master, np.zeros(elements, np.float32), warm_up_steps=n, **options)
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
        master, np.zeros(elements, np.float32), threshold=None, warm_up_density=0, **options
    )
    trained = random.normal(0, 1e-3, elements).astype(np.float32)
    session.push(trained)
    alone = session.stats.threshold

    _others = [join(master, np.zeros(elements, np.float32)) for _ in range(3)]
    session.wait(4)
    session.push(trained)

    # The first update met its density, so it moved the threshold by next to nothing.
    assert session.stats.threshold == pytest.approx(alone * ratio, rel=0.02)


def test_a_saved_session_goes_on_with_its_warm_up(master: LocalMaster) -> None:
    options = {
        "threshold": None,
        "target_density": 0.01,
        "warm_up_density": 0.5,
        "warm_up_steps": 400,
    }
    one = join(master, **options)
    for _ in range(4):
        one.push(change(0.1, 0.2, 0.3, 0.4))
    policy = one.state_dict()["policy"]
    assert policy["warm_up_done"] == 4
    saved = one.state_dict()
    one.close()

    with LocalMaster() as another:
        other = join(another, **options)
        other.load_state_dict(saved)
        assert other.state_dict()["policy"] == policy


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threshold": 0.1}, "warm_up_density=0.1 and threshold: a warm-up ends at a density"),
        ({"update_bytes": 1e3}, "warm_up_density=0.1 and update_bytes"),
        ({"target_density": 0.1}, "warm_up_density=0.1; it has to be above the usual one, 0.1"),
        ({"density_band": (0.1, 0.2)}, "it has to be above the usual one, 0.14"),
    ],
)
def test_what_a_warm_up_cannot_go_over_to_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Settings(master="somewhere", warm_up_density=0.1, **options)  # type: ignore[arg-type]
