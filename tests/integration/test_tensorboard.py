"""`gradwire master --tensorboard`: real processes, read by TensorBoard."""

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from socket import socket
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest

import gradwire
from gradwire import Session
from support.health import metrics
from support.local_master import MasterProcess
from support.processes import Running
from support.sessions import finish
from support.tensorboard import scalars_in
from support.waiting import comes_true, wait_until
from support.wording import naming

pytestmark = pytest.mark.timeout(180)

LOOK_SECONDS = 30.0
"""For what the master writes every 5 s."""


def join(master: MasterProcess, **options: Any) -> Session:
    options = {"threshold": 0.5, "staleness_bound": "off", **options}
    return gradwire.join(np.zeros(4, np.float32), master=master.address, **options)


def log(session: Session, first: int, last: int, name: str = "loss") -> None:
    """Train some steps, and log a value of each."""
    for step in range(first, last + 1):
        session.push(np.full(4, 0.5 if step % 2 else -0.5, np.float32))
        session.pull()
        session.log({name: step + 2.0 * session.rank}, step=step)


def of_master(master: MasterProcess, metric: str) -> float:
    return metrics(master.announcement["http"]).get(f"gradwire_{metric}_total", 0.0)


def wait_for_scalars(master: MasterProcess, count: int) -> None:
    wait_until(
        lambda: of_master(master, "scalars_logged") == count, f"{count} scalars at the master"
    )


def steps_in(path: Path, folder: str, name: str = "loss") -> list[int]:
    """Return the steps that TensorBoard reads; none before there is a file."""
    if not path.exists():
        return []
    return [step for step, _ in scalars_in(path).get(folder, {}).get(name, [])]


def test_what_each_worker_logs_and_the_mean_come_to_tensorboard(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "here"
    with MasterProcess("--tensorboard", str(path)) as master:
        one, other = join(master), join(master)
        with join(master, run="../<b>") as third:
            third.log({"x": float("nan")}, step=5)
            for session in (one, other):
                log(session, 1, 3)
            wait_for_scalars(master, 7)
            finish(one, other)
            third.finish()
        with join(master) as again:
            again.log({"loss": 9.0}, step=1)
            again.finish()
        status, _, err = master.stop(signal.SIGTERM)

    assert (status, "WARNING" in err, "ERROR" in err) == (0, False, False), err
    read = scalars_in(path)
    assert np.isnan(read["%2E.%2F%3Cb%3E/mean"]["x"][0][1])
    assert {folder: read[folder]["loss"] for folder in read if folder.startswith("default")} == {
        "default/worker-0": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "default/worker-1": [(1, 3.0), (2, 4.0), (3, 5.0)],
        "default/mean": [(1, 2.0), (2, 3.0), (3, 4.0)],
        "default~2/worker-0": [(1, 9.0)],
        "default~2/mean": [(1, 9.0)],
    }
    assert [each.name for each in tmp_path.iterdir()] == ["logs"]


def test_a_killed_master_goes_on_in_the_same_folder_and_repeats_no_step(tmp_path: Path) -> None:
    options = ("--tensorboard", str(tmp_path))
    with MasterProcess(*options) as master:
        address = master.address
        session = join(master)
        log(session, 1, 20)
        wait_until(lambda: steps_in(tmp_path, "default/mean"), "some steps", seconds=LOOK_SECONDS)
        log(session, 21, 40)
        master.signal(signal.SIGKILL)
        master.wait()
    log(session, 41, 60)
    with MasterProcess(*options, listen=address) as master:
        wait_until(lambda: of_master(master, "rejoins") == 1, "the worker to come back")
        log(session, 61, 80)
        session.finish()
        status, _, err = master.stop(signal.SIGTERM)

    assert status == 0, err
    assert [each.name for each in tmp_path.iterdir()] == ["default"]
    for folder in ("default/worker-0", "default/mean"):
        steps = steps_in(tmp_path, folder)
        assert all(step < later for step, later in pairwise(steps))
        assert {*range(1, 20), *range(61, 81)} <= set(steps)
    assert len(list(tmp_path.glob("default/worker-0/*"))) == 2


def test_a_folder_that_is_removed_is_made_again_with_everything(tmp_path: Path) -> None:
    path = tmp_path / "logs"
    with MasterProcess("--tensorboard", str(path)) as master:
        session = join(master)
        log(session, 1, 10)
        wait_until(lambda: steps_in(path, "default/worker-0"), "steps", seconds=LOOK_SECONDS)
        shutil.rmtree(path)
        log(session, 11, 20)
        session.finish()
        status, _, err = master.stop(signal.SIGTERM)

    assert status == 0
    assert naming("2 files", "default", path, "gone") in err.splitlines()
    assert steps_in(path, "default/worker-0") == steps_in(path, "default/mean") == [*range(1, 21)]


def can_mount() -> bool:
    """Return whether this user may make a file system in a mount namespace."""
    done = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    return done.returncode == 0


@pytest.mark.deep("a disk that is really full")
@pytest.mark.skipif(not can_mount(), reason="only root can mount: run the tests as root")
def test_a_full_disk_is_counted_and_said_and_when_there_is_room_nothing_is_missing(
    tmp_path: Path,
) -> None:
    mount = f'mount -t tmpfs -o size=64k tmpfs {tmp_path} && exec "$@"'
    with MasterProcess(
        "--tensorboard", str(tmp_path / "logs"),
        prefix=["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"],
    ) as master:  # fmt: skip
        inside = Path(f"/proc/{master.announcement['pid']}/root{tmp_path}")
        ballast = inside / "ballast"
        ballast.write_bytes(bytes(44 * 1024))
        session = join(master)
        log(session, 1, 600)
        wait_until(
            lambda: of_master(master, "tensorboard_failures") >= 2, "failures", seconds=LOOK_SECONDS
        )
        log(session, 601, 610)
        ballast.unlink()
        log(session, 611, 611)
        wait_until(
            lambda: of_master(master, "tensorboard_points") > 1000, "points", seconds=LOOK_SECONDS
        )
        session.finish()
        kept = tmp_path.parent / f"{tmp_path.name}-kept"
        wait_until(
            lambda: steps_in(inside, "logs/default/mean")[-1:] == [611], "the last step",
            seconds=LOOK_SECONDS,
        )  # fmt: skip
        shutil.copytree(inside / "logs", kept)
        status, _, err = master.stop(signal.SIGTERM)

    assert status == 0
    assert err.count("No space left on device") == 1, "once a minute"
    for folder in ("default/worker-0", "default/mean"):
        assert steps_in(kept, folder) == [*range(1, 612)]


@pytest.mark.deep("TensorBoard as a program takes seconds of processor to start")
def test_the_program_tensorboard_shows_the_curves_of_a_run_in_progress(tmp_path: Path) -> None:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = f"http://127.0.0.1:{port}/data/plugin/scalars"

    def asked(page: str, **query: str) -> Any:
        try:
            with urlopen(f"{api}/{page}?{urlencode(query)}", timeout=5) as response:
                return json.load(response)
        except URLError:
            return None  # it is not there yet

    command = [
        sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--port", str(port),
        "--host", "127.0.0.1", "--reload_interval", "1",
    ]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with (
        MasterProcess("--tensorboard", str(tmp_path)) as master,
        Running(command, env={**os.environ, "PYTHONWARNINGS": "ignore"}, **quiet),
    ):
        one, other = join(master, run="first"), join(master, run="first")
        for session in (one, other):
            log(session, 1, 50, "train/loss")
        wait_until(
            lambda: {"first/mean", "first/worker-0", "first/worker-1"} <= set(asked("tags") or ()),
            "TensorBoard to find the runs",
            seconds=60,
        )
        assert comes_true(lambda: len(_curve(asked, "first/mean")) == 49, seconds=LOOK_SECONDS)
        for session in (one, other):
            log(session, 51, 60, "train/loss")
        finish(one, other)
        assert comes_true(lambda: len(_curve(asked, "first/mean")) == 60, seconds=LOOK_SECONDS)
        assert _curve(asked, "first/worker-1") == [(n, n + 2.0) for n in range(1, 61)]
        master.stop(signal.SIGTERM)


def _curve(asked: Any, run: str) -> list[tuple[int, float]]:
    points = asked("scalars", tag="train/loss", run=run) or []
    return [(step, value) for _, step, value in points]
