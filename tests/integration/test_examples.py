"""The examples of the documentation train, on two workers each, and end with equal replicas."""

import re
import sys
from pathlib import Path

import pytest

from support.processes import completed
from support.tiers import variants
from support.waiting import JOB

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

NEEDS: dict[str, list[str]] = {
    "numpy_loop": [],
    "jax_loop": ["jax", "optax"],
    "lightning_module": ["lightning"],
    "huggingface_trainer": ["accelerate", "transformers"],
}


@pytest.mark.parametrize("name", variants(*NEEDS))
def test_an_example_learns_and_its_workers_end_alike(name: str) -> None:
    for package in NEEDS[name]:
        pytest.importorskip(package)
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", "40"]

    done = completed(
        [sys.executable, "-m", "gradwire", "run", "-n", "2", "--", *command], seconds=JOB
    )

    assert done.returncode == 0, done.stderr
    ends = re.findall(
        r"^\[(\d)\] replica (\w+), loss ([\d.]+) -> ([\d.]+)$", done.stdout, re.MULTILINE
    )
    assert sorted(rank for rank, *_ in ends) == ["0", "1"], done.stdout
    assert len({(replica, after) for _, replica, _, after in ends}) == 1
    assert all(float(after) < 0.9 * float(before) for _, _, before, after in ends)


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"train", "spark_digits", *NEEDS}
