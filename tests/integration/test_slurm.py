"""docs/examples/slurm.sh: read by shellcheck, and as a job of a real Slurm on loopback."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slurm import SlurmCluster, search_path
from support.waiting import JOB, wait_for_process, wait_until

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SCRIPT = EXAMPLES / "slurm.sh"
TRAINING = ["python", str(EXAMPLES / "numpy_loop.py")]


def test_shellcheck_has_nothing_to_say_against_the_script() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck: apt-get install shellcheck")

    checked = subprocess.run(
        ["shellcheck", "--severity=style", SCRIPT], capture_output=True, text=True, check=False
    )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    assert SCRIPT.stat().st_mode & 0o111, "it can be started"


def test_without_a_command_the_script_says_how_it_is_called() -> None:
    told = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, check=False)

    assert told.returncode == 2
    assert "sbatch" in told.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster() as running:
        yield running


class Job:
    """A job with two workers on the only node, and what it has written."""

    def __init__(self, cluster: SlurmCluster, folder: Path, *command: str) -> None:
        self._cluster = cluster
        self.folder = folder / "job"
        self._output = folder / "output.txt"
        beside = str(Path(sys.executable).parent)
        submitted = cluster.run(
            *["sbatch", "--parsable", "--ntasks=2", "--ntasks-per-node=2"],
            f"--output={self._output}",
            str(SCRIPT),
            *command,
            JOB_FOLDER=str(self.folder),
            PATH=f"{beside}:{search_path()}",
        )
        self.number = submitted.strip()

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8") if self._output.exists() else ""

    @property
    def state(self) -> str:
        return self._cluster.job(self.number)["JobState"]

    def wait_for_output(self, pattern: str, times: int = 1) -> None:
        wait_until(
            lambda: len(re.findall(pattern, self.output, re.MULTILINE)) >= times,
            f"{pattern!r}, {times} times",
            seconds=JOB,
        )

    def wait_for_state(self, state: str) -> None:
        wait_until(lambda: self.state == state, f"the state {state}", seconds=JOB)

    def signal(self, *options: str) -> None:
        self._cluster.run("scancel", *options, self.number)

    def keys_left(self) -> list[Path]:
        return list(self.folder.glob("*.key"))


@pytest.mark.deep("a real cluster of Slurm on one node")
def test_a_job_trains_with_as_many_workers_as_tasks_and_leaves_no_key(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, *TRAINING, "--steps", "60")

    job.wait_for_output(r"^replica", 2)
    job.wait_for_state("COMPLETED")

    assert "2 workers, master at localhost:" in job.output
    replicas = re.findall(r"^replica (\w+)", job.output, re.MULTILINE)
    assert len(replicas) == 2
    assert len(set(replicas)) == 1
    assert len(re.findall(r"rank \d \(.*joined run 'default'", job.output)) == 2
    assert "sealed" in job.output
    assert job.folder.stat().st_mode & 0o077 == 0
    assert job.keys_left() == []
    assert list((job.folder / "checkpoints").glob("*-over.safetensors"))


@pytest.mark.deep("a real cluster of Slurm on one node")
def test_a_worker_that_fails_ends_neither_the_others_nor_the_run(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    training = " ".join([*TRAINING, "--steps", "60", "--workers", "1"])
    fails = f'if [ "$SLURM_PROCID" = 1 ]; then exit 3; fi; exec {training}'

    job = Job(cluster, tmp_path, "sh", "-c", fails)
    job.wait_for_output(r"^replica")
    job.wait_for_state("FAILED")

    assert cluster.job(job.number)["ExitCode"] == "3:0"
    assert len(re.findall(r"^replica (\w+)", job.output, re.MULTILINE)) == 1
    assert "run 'default' is finished" in job.output


@pytest.mark.deep("a real cluster of Slurm on one node")
def test_a_job_whose_time_is_over_is_queued_again_and_goes_on_until_it_is_cancelled(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, *TRAINING, "--steps", "1000000")
    job.wait_for_output(r"^step 50:", 2)

    job.signal("--batch", "--signal=USR1")  # as Slurm does two minutes before the time limit
    job.wait_for_output("goes on from .*safetensors: 35072 parameters")
    job.wait_for_output("training goes on with 2 workers", 2)
    restarts = cluster.job(job.number)["Restarts"]
    job.wait_for_output(r"^step 50:", 4)
    job.signal()
    job.wait_for_state("CANCELLED")
    job.wait_for_output("was written to", 2)

    assert restarts == "1"
    assert f"queued again, to go on from {job.folder}/checkpoints" in job.output
    assert len(re.findall("left: ended by SIGTERM", job.output)) >= 2
    wait_for_process(lambda: job.keys_left() == [], "the keys to be removed")


def test_the_script_names_two_minutes_as_slurm_is_told() -> None:
    text = SCRIPT.read_text(encoding="utf-8")

    [seconds] = re.findall(r"^#SBATCH --signal=B:USR1@(\d+)", text, re.MULTILINE)
    assert int(seconds) == 2 * 60
    assert "Two minutes before" in text
