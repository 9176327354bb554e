"""A real master that is killed and begins again from its checkpoints."""

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

import gradwire
from gradwire_udp.files.checkpoints import names_in, read
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.sessions import HALF, change, delivered, finish
from support.waiting import wait_for_process, wait_until

OFTEN = ("--checkpoint-seconds", "0.05")
NEVER = ("--checkpoint-seconds", "100000")


def join(master: MasterProcess, **options: Any) -> gradwire.Session:
    target = np.zeros(4, np.float32)
    return gradwire.join(target, master=master.address, threshold=HALF, **options)


def status(master: MasterProcess) -> dict[str, Any]:
    return run_status(master.announcement["http"])


def train(*sessions: gradwire.Session) -> None:
    """Let each session change its own element, and wait until the master has that."""
    for i, session in enumerate(sessions):
        for _ in range(3):
            session.push(change(*(float(i == j) for j in range(4))))
        delivered(session, 3)


def test_a_master_that_was_killed_goes_on_where_its_last_checkpoint_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.session.lifetime.LEAVE_SECONDS", 0.1)
    options = ("--checkpoint", str(tmp_path))
    with MasterProcess(*options, *OFTEN) as master:
        lost = [join(master) for _ in range(2)]
        train(*lost)
        wait_for_process(
            lambda: (status(master)["checkpoint"] or {}).get("updates") == 6, "all to be on disk"
        )
        counted = metrics(master.announcement["http"])
        master.signal(signal.SIGKILL)
        master.wait()
    for session in lost:
        session.close()

    newest = read(tmp_path / names_in(tmp_path)[0])
    assert newest.checkpoint.versions == {0: 3, 1: 3}
    assert np.frombuffer(newest.values, "<i4").tolist() == [3 * 2**24, 3 * 2**24, 0, 0]
    assert counted["gradwire_checkpoints_written_total"] >= 1
    assert counted["gradwire_checkpoint_bytes"] == newest.path.stat().st_size
    target = np.zeros(4, np.float32)
    loaded = gradwire.load_checkpoint(tmp_path, target)
    assert target.tolist() == [3.0, 3.0, 0.0, 0.0]

    with MasterProcess(*options, *NEVER, "--resume", str(tmp_path)) as master:
        before = status(master)
        sessions = [join(master), join(master)]
        assert [session.digest() for session in sessions] == [loaded.digest] * 2
        train(*sessions)
        finish(*sessions)
        digests = {session.digest() for session in sessions}
        wait_for_process(lambda: status(master)["name"] is None, "the end")
        state, _, _ = master.stop(signal.SIGTERM)

    assert (before["name"], before["parameters"], before["workers"]) == ("default", 4, [])
    assert before["checkpoint"]["updates"] == 6
    assert state == 0
    end = gradwire.load_checkpoint(tmp_path, target)
    assert (end.finished, end.updates) == (True, 12)
    assert {end.digest} == digests
    assert target.tolist() == [6.0, 6.0, 0.0, 0.0]


def with_buffers(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    module.register_buffer("order", torch.randperm(9))
    return module


def buffers_in(module: torch.nn.Module) -> dict[str, list[float]]:
    return {name: buffer.flatten().tolist() for name, buffer in module.named_buffers()}


def test_buffers_are_in_checkpoints_for_models_and_for_the_run_that_goes_on(
    tmp_path: Path,
) -> None:
    trained, *fresh = (with_buffers(seed) for seed in range(4))
    with MasterProcess("--checkpoint", str(tmp_path), *NEVER) as master:
        session = gradwire.join(trained, master=master.address, buffer_steps=1)
        for _ in range(20):
            trained(5 * torch.randn(16, 3))
            session.step()
        http = master.announcement["http"]
        received = "gradwire_buffers_received_total"
        wait_until(lambda: metrics(http)[received] == 21, "the buffers of all steps")
        master.stop(signal.SIGTERM)
    session.close()

    loaded = gradwire.load_checkpoint(tmp_path, fresh[0])
    message = fresh[1].load_state_dict(safetensors.torch.load_file(loaded.path))
    with MasterProcess("--checkpoint", str(tmp_path), "--resume", str(tmp_path)) as master:
        gradwire.join(fresh[2], master=master.address).close()

    assert set(loaded.buffers) == set(buffers_in(trained))
    assert str(message) == "<All keys matched successfully>"
    assert [buffers_in(module) for module in fresh] == [buffers_in(trained)] * 3


def test_the_documentation_says_how_to_read_a_checkpoint_without_gradwire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    [snippet] = re.findall(r"```python\n(from safetensors .*?)```", text, re.DOTALL)
    [shown, computed] = re.findall(r"\$ (.* default-000042\.safetensors .*)", text)
    with MasterProcess("--checkpoint", str(tmp_path), *NEVER) as master:
        session = join(master)
        train(session)
        digest = session.digest()
        master.stop(signal.SIGTERM)
    session.close()
    (tmp_path / names_in(tmp_path)[0]).rename(tmp_path / "default-000042.safetensors")
    monkeypatch.chdir(tmp_path)

    names: dict[str, Any] = {}
    exec(snippet, names)
    digits = [subprocess.check_output(line, shell=True)[:64] for line in (shown, computed)]

    target = np.zeros(4, np.float32)
    gradwire.load_checkpoint(tmp_path, target)
    assert names["parameters"].keys() == {"array"}
    assert names["parameters"]["array"].dtype == np.float32
    assert names["parameters"]["array"].tolist() == target.tolist() == [3.0, 0.0, 0.0, 0.0]
    with safetensors.safe_open("default-000042.safetensors", framework="numpy") as file:
        metadata = file.metadata()
    assert (metadata["run"], metadata["finished"], metadata["versions"]) == (
        "default", "false", "[[0,3]]",
    )  # fmt: skip
    assert metadata["digest"] == digest
    assert digits[0] == digits[1] == metadata["sha256"].encode()


@pytest.mark.deep("checkpoints that are damaged or gone")
def test_a_folder_that_is_gone_stops_nothing_and_may_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with MasterProcess("--checkpoint", str(folder), *OFTEN) as master:
        session = join(master)
        gone = folder.rename(tmp_path / "gone")
        train(session)
        http = master.announcement["http"]
        wait_for_process(
            lambda: metrics(http)["gradwire_checkpoints_failed_total"] >= 1, "a failure"
        )
        gone.rename(folder)
        wait_for_process(lambda: names_in(folder), "a checkpoint")
        session.close()
        state, _, err = master.stop(signal.SIGTERM)

    assert state == 0
    assert f"no checkpoint of run 'default': {folder}: No such file or directory" in err
