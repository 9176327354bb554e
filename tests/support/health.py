"""What a master says over HTTP."""

import json
from typing import Any
from urllib.request import urlopen


def run_status(http: str) -> dict[str, Any]:
    """Return what ``/status`` says."""
    with urlopen(f"http://{http}/status", timeout=5) as response:
        status: dict[str, Any] = json.load(response)
    return status


def metrics(http: str) -> dict[str, float]:
    """Return the samples of ``/metrics``, by name and labels as they are written."""
    with urlopen(f"http://{http}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}
