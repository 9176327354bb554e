"""`SparkJob`: one job of Spark, waited for by the driver's thread while that does other things."""

import re
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import SparkSession

from gradwire.spark.errors import WorkerFailedError

OUT_OF_MEMORY: Final = ("bad_alloc", "MemoryError", "Cannot allocate", "failed to map segment")
"""What C++, Python, the system and its loader say where no more memory may be mapped."""


class SparkJob:
    """A job that runs on a thread of its own.

    Parameters
    ----------
    spark : SparkSession
    action : callable
        Runs the job and returns its result.
    """

    def __init__(self, spark: SparkSession, action: Callable[[], Any]) -> None:
        self._spark = spark
        self._action = action
        self._tag = f"gradwire-{uuid4().hex}"
        self._done: Future[Any] = Future()
        Thread(target=self._run, name="gradwire-spark-job", daemon=True).start()

    def is_done(self, seconds: float) -> bool:
        """Wait for so long at most; return whether the job is over."""
        return bool(wait([self._done], seconds).done)

    def result(self) -> Any:
        """Wait for the result.

        Raises
        ------
        WorkerFailedError
            If Spark could not run the tasks, such as where executors have no gradwire, or the job
            was cancelled.
        """
        try:
            return self._done.result()
        except Exception as error:  # pyspark's, py4j's or gRPC's
            raise WorkerFailedError(_told(str(error))) from error

    def cancel(self) -> None:
        """End the job's tasks."""
        if not self._done.done():
            self._spark.interruptTag(self._tag)

    def _run(self) -> None:
        try:
            self._spark.addTag(self._tag)  # of this thread's jobs
            self._done.set_result(self._action())
        except BaseException as error:
            self._done.set_exception(error)


def _told(text: str) -> str:
    """Return what Spark says in many lines, in one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    last = errors[-1] if errors else lines[0] if lines else "the job has failed"
    return f"Spark could not train: {last}{advice(last)}"


def advice(error: str) -> str:
    """Return what to do about an error of a task that says little by itself."""
    if any(sign in error for sign in OUT_OF_MEMORY):
        return (
            ". spark.executor.pyspark.memory limits what workers may map: they need 2g for each "
            "core"
        )
    if "No module named" in error or "ImportError" in error:
        return (
            ". Executors need gradwire[spark] and the package of the model; spark.pyspark.python "
            "or PYSPARK_PYTHON says which Python they use"
        )
    return ""


_ERROR = re.compile(r"[A-Za-z_.]+(Error|Exception): ")
