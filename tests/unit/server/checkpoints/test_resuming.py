"""Resuming: which checkpoint a master begins with, or why with none."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradwire_protocol import UsageError
from gradwire_server.checkpoints.resuming import resumed_runs
from gradwire_server.config import MasterConfig
from gradwire_server.series.series import Series
from gradwire_udp.files.checkpoints import name_of
from support.checkpointing import VALUES, VERSIONS, bytes_of, checkpoint_of, written_to
from support.curves import logged, means_in
from support.wording import naming


def refusal(resume: str, checkpoint: Path | None = None, config: MasterConfig | None = None) -> str:
    with pytest.raises(UsageError) as refused:
        resumed_runs(resume, checkpoint, config or MasterConfig())
    return str(refused.value)


def test_the_run_is_there_without_any_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written_to(tmp_path)

    with caplog.at_level(logging.INFO, "gradwire.master"):
        [run] = resumed_runs(str(tmp_path), None, MasterConfig())

    assert run.founded
    assert run.awaits_workers
    assert (run.name, run.layout, run.finished) == ("alpha", checkpoint_of().layout, False)
    assert run.replica.values.tolist() == VALUES.tolist()
    assert run.replica.quantum_exponent == -24
    assert run.relay.versions == run.relay.stable.versions == VERSIONS
    assert run.relay.log.place == checkpoint_of().place
    assert (run.relay.unstable, run.relay.next_sequence(0), run.relay.next_sequence(1)) == (0, 4, 1)
    run.replica.values += 1
    assert caplog.messages == [
        naming("alpha", path, "7 parameters", "4 updates", f"{checkpoint_of().digest:016x}")
    ]


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_run_goes_on_with_its_curves_or_without_those_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_sound: bool
) -> None:
    series = Series()
    series.add(0, b"worker", logged(1, 5, {"loss": 0.5}), 0.0)
    packed = series.save().compressed() if is_sound else b"of another version"
    path = written_to(tmp_path, 1, bytes_of(replace(checkpoint_of(), series=packed)))

    [run] = resumed_runs(str(tmp_path), None, MasterConfig())

    assert means_in(run.series) == (means_in(series) if is_sound else {})
    assert caplog.messages == ([] if is_sound else [naming(path, "goes on without it", "series")])


def test_of_damaged_ones_the_names_are_logged_and_an_older_one_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written_to(tmp_path, 1)
    lying = written_to(tmp_path, 2, bytes_of(checkpoint_of(digest=5)))
    damaged = written_to(tmp_path, 3, bytes_of()[:-1])

    [run] = resumed_runs(str(tmp_path), tmp_path, MasterConfig())

    assert run.last_checkpoint is not None
    assert run.last_checkpoint.name == "alpha-000001.safetensors"
    assert caplog.messages == [
        naming(damaged, len(bytes_of()) - 1, len(bytes_of())),
        naming(lying, f"{checkpoint_of().digest:016x}", f"{5:016x}"),
    ]


def test_without_any_that_can_be_used_there_is_no_master(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == naming("--resume", tmp_path)
    assert refusal(str(tmp_path / "x")) == naming("--resume", tmp_path / "x", "No such file")
    written_to(tmp_path, 1, b"damaged")
    assert refusal(str(tmp_path)) == naming("--resume", tmp_path, 1, "b'damaged'")
    assert refusal("auto", tmp_path) == naming("--resume", tmp_path, 1, "b'damaged'")


def test_auto_may_find_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gradwire.master"):
        assert resumed_runs("auto", tmp_path, MasterConfig()) == []
        assert caplog.messages == [naming("no checkpoint", tmp_path)]
    written_to(tmp_path)
    assert len(resumed_runs("auto", tmp_path, MasterConfig())) == 1
    assert resumed_runs(None, tmp_path, MasterConfig()) == []


def test_a_run_that_was_finished_does_not_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written_to(tmp_path, 1)
    path = tmp_path / name_of("alpha", 2, is_over=True)
    path.write_bytes(bytes_of(checkpoint_of(finished=True)))

    with caplog.at_level(logging.INFO, "gradwire.master"):
        assert resumed_runs(str(tmp_path), tmp_path, MasterConfig()) == []

    assert caplog.messages == [naming(path.name, "gradwire.load_checkpoint")]


def test_a_checkpoint_of_another_run_or_a_larger_model_is_refused(tmp_path: Path) -> None:
    path = written_to(tmp_path, 2)
    small = np.zeros(7, np.int32)
    written_to(tmp_path, 1, bytes_of(checkpoint_of(small), small))

    assert refusal(str(tmp_path), None, MasterConfig(run="beta")) == naming(
        "--resume", tmp_path, "alpha", "beta", "--run"
    )
    assert refusal(str(tmp_path), None, MasterConfig(parameters_max=6)) == naming(path, 7, 6)
    assert len(resumed_runs(str(tmp_path), None, MasterConfig(run="alpha"))) == 1


def test_where_the_newest_is_damaged_a_run_that_was_over_before_does_not_go_on(
    tmp_path: Path,
) -> None:
    over = tmp_path / name_of("alpha", 1, is_over=True)
    over.write_bytes(bytes_of())  # ended by order, so it has not finished
    written_to(tmp_path, 2, b"damaged")

    assert resumed_runs("auto", tmp_path, MasterConfig()) == []


def test_each_run_of_a_folder_goes_on_from_its_own_newest(tmp_path: Path) -> None:
    for number, run in enumerate(("alpha", "beta", "alpha"), 1):
        path = tmp_path / name_of(run, number, is_over=False)
        path.write_bytes(bytes_of(replace(checkpoint_of(), run=run)))

    runs = resumed_runs("auto", tmp_path, MasterConfig())
    only = resumed_runs("auto", tmp_path, MasterConfig(run="beta"))
    first = resumed_runs("auto", tmp_path, MasterConfig(runs_max=1))

    assert [run.name for run in runs] == ["alpha", "beta"]
    assert [run.last_checkpoint and run.last_checkpoint.name for run in runs] == [
        "alpha-000003.safetensors",
        "beta-000002.safetensors",
    ]
    assert [run.name for run in only] == ["beta"]
    assert [run.name for run in first] == ["alpha"]
