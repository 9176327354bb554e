"""Which tests go to one process together."""

from pathlib import Path
from typing import Any

import pytest

from support import parallel_plugin
from support.parallel_plugin import Scheduling

SHARING = """
@pytest.fixture(scope="module")
def outcome(): ...
"""


@pytest.fixture
def scheduling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "test_alone.py").write_text("def test_one(seed): ...\n")
    (tmp_path / "test_sharing.py").write_text(SHARING)
    monkeypatch.setattr(parallel_plugin, "ROOT", tmp_path)
    return Scheduling.__new__(Scheduling)  # without a run of pytest


def test_those_of_one_function_do(scheduling: Any) -> None:
    scopes = [
        scheduling._split_scope(f"test_alone.py::{name}")
        for name in ("test_one[1-a::b]", "test_one[2-c]", "test_other[1-a::b]", "test_plain")
    ]

    assert scopes[0] == scopes[1]
    assert len(set(scopes)) == 3


def test_those_of_a_file_do_where_they_share_a_fixture(scheduling: Any) -> None:
    scopes = {
        scheduling._split_scope(f"test_sharing.py::{name}") for name in ("test_one[1]", "test_two")
    }

    assert scopes == {"test_sharing.py"}


def test_all_tests_with_spark_are_run_one_after_the_other(scheduling: Any) -> None:
    scopes = {
        scheduling._split_scope(f"tests/integration/spark/{name}")
        for name in ("test_fit.py::test_one[1]", "test_connect.py::test_two")
    }

    assert len(scopes) == 1
    assert scheduling._split_scope("test_alone.py::test_one") not in scopes
