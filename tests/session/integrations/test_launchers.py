"""`stand_alone`: the variables of launchers, out of the sight of frameworks."""

import os

import pytest

from gradwire.integrations import stand_alone
from gradwire.settings.settings import resolve_settings


def test_what_a_launcher_says_about_the_run_stays_and_the_rest_goes() -> None:
    environ = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.2.4",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "HOME": "/home",
    }
    before = resolve_settings({}, environ)

    assert stand_alone(environ) == 1

    assert environ.keys() == {"HOME", "GRADWIRE_RANK", "GRADWIRE_WORKERS", "GRADWIRE_MASTER"}
    assert resolve_settings({}, environ) == before
    assert stand_alone(environ) == 0


def test_slurm_is_out_of_sight_as_well() -> None:
    environ = {
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "17",
        "GRADWIRE_MASTER": "10.0.2.4",
    }
    before = resolve_settings({}, environ)

    assert stand_alone(environ) == 1

    assert environ.keys() == {
        "SLURM_JOB_ID",
        "GRADWIRE_MASTER",
        "GRADWIRE_RANK",
        "GRADWIRE_WORKERS",
    }
    assert resolve_settings({}, environ) == before


def test_what_was_said_to_gradwire_itself_comes_first() -> None:
    environ = {"MASTER_ADDR": "10.0.2.4", "GRADWIRE_MASTER": "10.0.2.5:40123"}

    stand_alone(environ)

    assert environ == {"GRADWIRE_MASTER": "10.0.2.5:40123"}


def test_it_is_the_environment_of_this_process_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("GRADWIRE_RANK", "")  # so that it is taken back
    monkeypatch.delenv("GRADWIRE_RANK")

    stand_alone()

    assert "RANK" not in os.environ
    assert os.environ["GRADWIRE_RANK"] == "2"
