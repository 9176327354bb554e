"""What a master says over HTTP."""

import json
import re
from collections import Counter
from typing import Any, Final
from urllib.request import urlopen

from support.waiting import PROCESS

NO_RUN: Final[dict[str, Any]] = {
    "name": None, "finished": False, "parameters": None, "workers": [], "observers": [],
    "versions": {}, "checkpoint": None,
}  # fmt: skip


def status_of(http: str) -> dict[str, Any]:
    """Return what ``/api/v1/overview`` says."""
    with urlopen(f"http://{http}/api/v1/overview", timeout=PROCESS) as response:
        status: dict[str, Any] = json.load(response)
    return status


def run_status(http: str) -> dict[str, Any]:
    """Return what ``/api/v1/overview`` says, and beside it what it says of the only run."""
    return with_only_run(status_of(http))


def with_only_run(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status, and beside it that of its only run."""
    [run] = status["runs"] or [NO_RUN]
    return {**status, **run}


def metrics(http: str) -> dict[str, float]:
    """Return the samples of ``/metrics``, by name and labels as they are written, over all runs."""
    with urlopen(f"http://{http}/metrics", timeout=PROCESS) as response:
        lines = response.read().decode().splitlines()
    samples: Counter[str] = Counter()
    for line in lines:
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[_without_run(name)] += float(value)  # type: ignore[assignment]  # of floats
    return dict(samples)


def _without_run(name: str) -> str:
    return re.sub(r'run="[^"]*",|,?run="[^"]*"', "", name).replace("{}", "")
