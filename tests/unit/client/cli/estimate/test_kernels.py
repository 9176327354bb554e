"""The codec's kernels, timed: that all are, on small models and dense updates, too."""

from dataclasses import astuple
from math import isfinite

import pytest

from gradwire.cli.estimate.kernels import measure_kernels, scan_seconds


@pytest.mark.parametrize(
    ("parameters", "density", "threads"), [(100, 0.01, 1), (100_000, 0.9, 1), (300_000, 0.001, 2)]
)
def test_every_kernel_takes_some_time(parameters: int, density: float, threads: int) -> None:
    found = measure_kernels(parameters, density, codec_threads=threads)

    assert found.pass_seconds_per_parameter > 0
    assert found.apply_seconds_per_hit > 0
    assert found.master_seconds_per_hit > 0
    assert all(isfinite(seconds) for seconds in astuple(found))
    assert scan_seconds(1000) > 0
