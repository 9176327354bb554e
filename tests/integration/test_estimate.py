"""``gradwire estimate --script``: a script is run, and its steps are timed."""

import json
import subprocess
import sys
from pathlib import Path

from support.processes import completed
from support.waiting import JOB

SCRIPT = """
import gradwire, numpy as np, sys
print("given", *sys.argv[1:])
if "--fail" in sys.argv:
    raise RuntimeError("the data is not where it should be")
target = np.zeros(100_000, np.float32)
with gradwire.join(target) as session:
    session.wait()
    print("alone", session.rank, session.world_size)
    while True:
        target += np.float32(0.001)
        session.step()
"""


def gradwire_estimate(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "gradwire", "estimate", "--json", "--script", str(script)]
    return completed([*command, "--", *arguments], seconds=JOB)


def test_a_script_is_run_alone_and_ended(tmp_path: Path) -> None:
    done = gradwire_estimate(tmp_path / "train.py", "--epochs", "3")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # what the script prints is no data of ours
    assert found["parameters"] == 100_000
    assert 0 < found["training"] < 1
    assert "given --epochs 3" in done.stderr
    assert "alone 0 1" in done.stderr


def test_the_error_of_a_script_that_fails_is_shown(tmp_path: Path) -> None:
    done = gradwire_estimate(tmp_path / "train.py", "--fail")

    assert (done.returncode, done.stdout) == (1, "")
    assert "the data is not where it should be" in done.stderr
