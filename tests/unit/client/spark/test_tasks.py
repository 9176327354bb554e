"""A task imports what trains, and no more than that."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pickle import dumps, loads

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: make frameworks")

import pyarrow as pa

from gradwire.spark.training.tasks import collector_paused, task
from gradwire.spark.training.worker import probe

NEEDLESS = {"pandas", "pyspark.ml", "torch._dynamo"}
"""What a worker does not import for itself."""


def said_by(code: str, content: bytes = b"") -> set[str]:
    """Return the words that a new process writes."""
    command = [sys.executable, "-c", f"import gc, pickle, sys; {code}"]
    done = subprocess.run(command, check=True, capture_output=True, input=content)
    return set(done.stdout.decode().split())


def test_a_worker_imports_nothing_of_spark_s_that_tasks_do_not_need() -> None:
    found = said_by("import gradwire.spark.training.worker; print(*sys.modules)")

    assert "torch" in found
    assert found & NEEDLESS == set()


def test_what_unpickling_a_task_imports_is_never_searched_for_garbage() -> None:
    content = dumps(task(probe, b"a recipe"))
    code = "pickle.load(sys.stdin.buffer); print(gc.isenabled(), gc.get_freeze_count() > 100_000)"

    assert said_by(code, content) == {"True"}


def test_where_addresses_are_limited_arrow_reserves_none() -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_AS, (2**31, 2**31))"
    code = f"{limit}; pickle.load(sys.stdin.buffer); import pyarrow"

    found = said_by(
        f"{code}; print(pyarrow.default_memory_pool().backend_name)", dumps(task(probe))
    )

    assert found == {"system"}


def repeated(times: int, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from [part] * times


def test_a_task_is_called_with_its_arguments_and_the_batches() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    found = task(repeated, 3)

    for each in (found, loads(dumps(found))):
        assert list(each(iter([batch]))) == [batch] * 3
    gc.unfreeze()


def test_garbage_is_collected_again_after_imports_that_have_failed() -> None:
    def fail() -> None:
        assert not gc.isenabled()
        raise ImportError

    with pytest.raises(ImportError):
        collector_paused()(fail)()

    assert gc.isenabled()
    assert gc.get_freeze_count()
    gc.unfreeze()
