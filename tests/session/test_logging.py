"""`session.log`, against a real master."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import UsageError
from gradwire_protocol import Role
from support.curves import means_in
from support.local_master import LocalMaster
from support.processes import Running
from support.sessions import RUN_KEY, join, zeros
from support.waiting import JOB, PROCESS, wait_until
from support.wording import naming


def test_scalars_of_all_kinds_come_to_the_master(master: LocalMaster) -> None:
    with join(master, zeros()) as session:
        session.log(loss=4, rate=np.float32(0.5))
        session.step()
        session.log({"train/loss": torch.tensor(2.0, requires_grad=True)}, good=True)
        session.log(step=1000, loss=torch.tensor([1.0]))
        wait_until(lambda: master.series.taken >= 5, "all scalars to come")

        assert means_in(master.series) == {
            (name, rank): steps
            for name, steps in {
                "good": [(1, 1.0)],
                "loss": [(0, 4.0), (1000, 1.0)],
                "rate": [(0, 0.5)],
                "train/loss": [(1, 2.0)],
            }.items()
            for rank in (None, 0)
        }
        assert session.stats.numbers()["scalars_dropped"] == 0.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.log(loss="low"), ("loss", "str", "one number")),
        (lambda s: s.log(loss=torch.zeros(2)), ("loss", "Tensor", "one number")),
        (lambda s: s.log(loss=np.zeros(2)), ("loss", "one number")),
        (lambda s: s.log(loss=None), ("loss", "one number")),
        (lambda s: s.log(loss=10**400), ("loss", "one number")),
        (lambda s: s.log({3: 1.0}), ("3", "text")),
        (lambda s: s.log({"": 1.0}), ("1 to 64",)),
        (lambda s: s.log({"x" * 65: 1.0}), ("1 to 64", "65")),
        (lambda s: s.log({"line\nbreak": 1.0}), ("can be printed",)),
        (lambda s: s.log({"gradwire/threshold": 1.0}), ("gradwire/", "another one")),
        (lambda s: s.log(loss=1.0, step=-1), ("step=-1", "0 to 4294967295")),
        (lambda s: s.log(loss=1.0, step=1.5), ("step=1.5",)),
    ],
)
def test_what_is_no_number_is_refused(master: LocalMaster, call: Any, said: Any) -> None:
    with join(master, zeros()) as session:
        with pytest.raises(UsageError) as caught:
            call(session)
        assert str(caught.value) == naming(*said)
        assert means_in(master.series) == {}


OTHER_CLOCKS = """
import sys, time
hours, monotonic, wall = float(sys.argv[1]), time.monotonic, time.time
time.monotonic, time.time = lambda: monotonic() + 3600 * hours, lambda: wall() - 3600 * hours

import numpy as np
import gradwire

with gradwire.join(np.zeros(4, np.float32), master=sys.argv[2]) as session:
    for step in range(2):
        sys.stdin.readline()
        session.log(loss=0.0, step=step)
    sys.stdin.read()
"""
"""A worker whose clock shows another time of day, and counts from another moment."""


@pytest.mark.parametrize("hours", [5, 50_000])
def test_a_worker_whose_clocks_are_hours_off_is_where_it_belongs_on_the_time_axis(
    master: LocalMaster, hours: int
) -> None:
    command = [sys.executable, "-c", OTHER_CLOCKS, str(hours), master.address]

    def wait_for(scalars: int) -> None:
        taken = lambda: master.series.taken >= scalars  # noqa: E731
        wait_until(taken, f"scalar {scalars} to come", seconds=PROCESS)

    with Running(command, stdin=subprocess.PIPE) as other, join(master, zeros()) as session:
        assert other.stdin is not None
        session.log(loss=1.0, step=0)
        wait_for(1)
        for step in range(2):
            other.stdin.write("\n")
            other.stdin.flush()
            wait_for(2 + 2 * step)
            session.log(loss=1.0, step=step + 1)
            wait_for(3 + 2 * step)
        found = {each.rank: each.curve.seconds.tolist() for each in master.series.curves_of("loss")}
        other.stdin.close()
        session.finish()

    own, others = found[session.rank], found[1 - session.rank]
    in_turn = [own[0], others[0], own[1], others[1], own[2]]
    assert in_turn == sorted(in_turn)
    assert in_turn[-1] < JOB


def test_a_session_that_is_over_logs_nothing(master: LocalMaster) -> None:
    session = join(master, zeros())
    session.finish()
    with pytest.raises(UsageError, match="over"):
        session.log(loss=1.0)


def test_an_observer_logs_nothing(keyed_master: LocalMaster) -> None:
    with join(keyed_master, zeros(), key=RUN_KEY.worker_key("one")):
        eyes = RUN_KEY.worker_key("eyes", Role.OBSERVER)
        observer = join(keyed_master, zeros(), key=eyes)
        with pytest.raises(UsageError, match="observer"):
            observer.log(loss=1.0)
        observer.close()


@pytest.mark.parametrize("end", ["leave", "finish", "close"])
def test_what_is_logged_just_before_the_end_is_with_the_master(
    master: LocalMaster, end: str
) -> None:
    session = join(master, zeros())
    session.log(loss=1.0)
    wait_until(lambda: master.series.taken == 1, "the first one to come")
    for step in range(100):
        session.log(step=step, loss=float("nan") if step % 2 else float("inf"))
    getattr(session, end)()

    assert master.series.taken == 101, "also after the end of the run"
