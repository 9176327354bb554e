"""Orders to a real master, by the command and over sockets."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire.cli.app import main
from support.local_master import MasterProcess
from support.processes import completed
from support.sessions import loss_of, membership_of
from support.tiers import variants
from support.waiting import PROCESS, SILENCE, wait_for_process
from support.wording import naming


class Site:
    """A folder with the keys of a run, its master, and who has them.

    Parameters
    ----------
    folder : Path
    options : str
        Of the master.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.run_key = folder / "run.key"
        assert main(["keygen", str(self.run_key)]) == 0
        self.token = folder / "http.token"
        assert main(["keygen", "--token", str(self.token)]) == 0
        keys = ["--key-file", str(self.run_key), "--http-operator-token-file", str(self.token)]
        self.master = MasterProcess(*keys, *options)

    def key(self, name: str, role: str = "worker") -> Path:
        path = self.folder / f"{name}.key"
        options = ["--worker", name, "--from", str(self.run_key), "--role", role]
        assert main(["keygen", *options, "--out", str(path)]) == 0
        return path

    def join(self, key_file: Path, **settings: Any) -> gradwire.Session:
        target = np.zeros(5, np.float32)
        return gradwire.join(
            target, master=self.master.address, key_file=key_file, threshold=0.5, **settings
        )

    def operate(self, *order: str) -> tuple[int, str]:
        """Give an order; return exit status and stdout."""
        command = [sys.executable, "-m", "gradwire", "operate", *order]
        options = ["--http", self.master.http, "--token-file", str(self.token)]
        done = completed([*command, *options])
        return done.returncode, done.stdout


@pytest.mark.parametrize("transport", variants("udp", "tcp"))
def test_a_master_that_is_drained_ends_with_status_0_when_the_last_worker_has_left(
    tmp_path: Path, transport: str
) -> None:
    site = Site(tmp_path)
    with site.master:
        worker = site.join(site.key("gpu1"), transport=transport)
        observer = site.join(site.key("eyes", "observer"), transport=transport)

        drained = site.operate("drain")
        _, shown = site.operate("status")
        with pytest.raises(gradwire.RefusedError, match="an operator drains this master"):
            site.join(site.key("gpu2"))
        worker.finish()
        lost = loss_of(observer)
        status, _, err = site.master.wait()

    assert drained[0] == 0
    assert json.loads(shown)["draining"] is True
    assert "the master was stopped by an operator, who drained it" in str(lost)
    assert status == 0
    assert "order (operator): drain: nobody is let in any more" in err


@pytest.mark.deep("more orders of operators")
def test_who_is_denied_by_order_stays_out_also_when_the_keys_are_read_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.master:
        bad_key = site.key("bad")
        bad, good = site.join(bad_key), site.join(site.key("good"))

        denied = site.operate("deny", "bad")
        lost = loss_of(bad)
        site.master.signal(signal.SIGHUP)
        with pytest.raises(gradwire.UnreachableError):
            site.join(bad_key, connect_timeout_seconds=1.0)
        admitted = site.operate("admit", "bad")
        site.join(bad_key).close()
        good.push(np.ones(5, np.float32))
        wait_for_process(lambda: good.stats.updates_delivered == 1, "the update to be there")
        good.close()

    assert "the key of this worker is not accepted any more" in str(lost)
    assert denied == (
        0,
        "bad is denied until the master ends; for longer, start it with --deny bad\n",
    )
    assert admitted == (0, "bad may join again\n")


@pytest.mark.deep("more orders of operators")
def test_a_checkpoint_is_written_by_order_and_the_status_says_when(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    site = Site(tmp_path, "--checkpoint", str(folder))
    with site.master:
        early = site.operate("checkpoint")
        worker = site.join(site.key("gpu1"))
        worker.push(np.ones(5, np.float32))
        wait_for_process(lambda: worker.stats.updates_delivered == 1, "the update to be there")

        ordered = site.operate("checkpoint")
        wait_for_process(lambda: (folder / "default-000001.safetensors").exists(), "a checkpoint")
        wait_for_process(
            lambda: not json.loads(site.operate("status")[1])["runs"][0]["checkpoint"]["writing"],
            "its end",
        )
        again = site.operate("checkpoint")
        loaded = gradwire.load_checkpoint(folder, np.zeros(5, np.float32))
        digest = worker.digest()
        worker.close()

    assert early == (4, "")
    assert ordered == (
        0,
        "run 'default' is being written with its 1 updates; status says when it is done\n",
    )
    assert again == (0, "nothing has changed since default-000001.safetensors was written\n")
    assert (loaded.updates, loaded.digest) == (1, digest)


def test_a_run_is_ended_by_order_at_a_master_on_loopback_without_keys() -> None:
    with MasterProcess() as master:
        options: dict[str, Any] = {"master": master.address, "threshold": 0.5}
        one = gradwire.join(np.zeros(5, np.float32), **options)
        with pytest.raises(gradwire.RefusedError, match="gradwire operate end-run"):
            gradwire.join(np.zeros(7, np.float32), **options)

        command = [sys.executable, "-m", "gradwire", "operate", "end-run"]
        done = completed([*command, "--http", master.http])
        denied = completed([*command[:-1], "deny", "gpu1", "--http", master.http])
        lost = loss_of(one)
        other = gradwire.join(np.zeros(7, np.float32), **options)
        other.finish()

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == naming("'default'", "is over", "sent away: 1")
    assert "an operator has ended the run" in str(lost)
    assert (denied.returncode, denied.stdout) == (4, "")
    assert "this master has no keys" in denied.stderr


def test_a_master_with_keys_takes_no_orders_without_an_operator_s_token(tmp_path: Path) -> None:
    assert main(["keygen", str(tmp_path / "run.key")]) == 0
    with MasterProcess("--key-file", str(tmp_path / "run.key")) as master:
        command = [sys.executable, "-m", "gradwire", "operate"]
        drain = completed([*command, "drain", "--http", master.http])
        status = completed([*command, "status", "--http", master.http])

    assert (drain.returncode, status.returncode) == (4, 0)
    assert drain.stderr == naming("--http-operator-token-file", "keygen --token")


@pytest.mark.parametrize("new_run", [True, False])
def test_a_master_that_begins_a_new_run_waits_for_nobody_of_the_old_one(new_run: bool) -> None:
    with MasterProcess() as master:
        address = master.address
        old = gradwire.join(
            np.zeros(5, np.float32), master=address, threshold=0.5, idle_timeout_seconds=SILENCE
        )
        master.stop(signal.SIGKILL)
    options = ["--new-run"] if new_run else []
    with MasterProcess("--recovery-seconds", str(PROCESS), *options, listen=address):
        if new_run:
            wait_for_process(lambda: membership_of(old).closed, "the refusal")
            with pytest.raises(gradwire.RefusedError, match="--new-run"):
                old.step()
        else:

            def is_back() -> bool:
                old.step()  # which gives the master the replica
                return old.stats.reconnections >= 1

            wait_for_process(is_back, "the worker to be back")
            old.close()
