"""``gradwire demo``, with fewer workers and steps."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from support.processes import completed
from support.tiers import count
from support.waiting import JOB

WORKERS = count(4, quick=2, of="workers of the demo")
STEPS = count(150, quick=20, of="steps of the demo")
DEMO = [sys.executable, "-m", "gradwire", "demo", "-n", str(WORKERS)]


@dataclass(frozen=True)
class Outcome:
    """What a demo left behind."""

    result: dict[str, Any]
    table: str
    messages: str
    picture: bytes


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("demo")
    done = completed([*DEMO, "--json", "demo.json", "--steps", str(STEPS)], seconds=JOB, cwd=folder)
    assert done.returncode == 0, done.stderr
    return Outcome(
        result=json.loads((folder / "demo.json").read_text(encoding="utf-8")),
        table=done.stdout,
        messages=done.stderr,
        picture=(folder / "gradwire-demo.png").read_bytes(),
    )


def test_the_result_has_what_it_promises_and_nothing_else(outcome: Outcome) -> None:
    assert set(outcome.result) == {
        "workers", "steps", "parameters", "loss_start", "loss_single", "loss_shared",
        "bytes_sent", "bytes_dense", "compression", "digests", "updates_sent",
        "updates_applied", "seconds",
    }  # fmt: skip
    assert (outcome.result["workers"], outcome.result["steps"]) == (WORKERS, STEPS)


def test_all_replicas_hold_the_same_bits(outcome: Outcome) -> None:
    assert len(outcome.result["digests"]) == WORKERS
    assert len(set(outcome.result["digests"])) == 1


def test_every_update_was_applied_by_everyone_else_once(outcome: Outcome) -> None:
    assert outcome.result["updates_sent"] >= WORKERS * STEPS
    assert outcome.result["updates_applied"] == (WORKERS - 1) * outcome.result["updates_sent"]


@pytest.mark.deep("steps enough to learn something")
def test_sharing_learns_more_than_one_worker_alone(outcome: Outcome) -> None:
    result = outcome.result

    assert result["loss_shared"] < result["loss_single"] - 0.1 < result["loss_start"] - 1


def test_compression_is_what_all_reduce_sends_over_what_the_sockets_sent(outcome: Outcome) -> None:
    result = outcome.result

    assert result["bytes_dense"] == 4 * result["parameters"] * 2 * (WORKERS - 1) * STEPS
    assert result["compression"] == result["bytes_dense"] / result["bytes_sent"]
    # To begin with, the first worker's parameters went to the master and to the others, in some 0.9
    # of their size.
    assert result["bytes_sent"] > 0.8 * WORKERS * 4 * result["parameters"]


def test_the_table_the_progress_and_the_picture_are_there(outcome: Outcome) -> None:
    assert outcome.result["digests"][0] in outcome.table
    assert f"step {STEPS} of {STEPS}" in outcome.messages
    assert outcome.picture.startswith(b"\x89PNG\r\n")
