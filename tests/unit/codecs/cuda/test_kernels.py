"""The kernels are made for a GPU: they compile for one, and round as the CPU does."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire_codecs import LocalFeedback, Replica
from gradwire_codecs.cuda.warm_up import vectors
from gradwire_codecs.format.header import DENSE, EVERY, LISTED, PLAIN

TESTS = Path(__file__).parents[3]

APPROXIMATE = re.compile(r"\.ftz|\.approx|div\.full")
"""Instructions that flush denormals to zero, or do not round to the nearest."""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_every_kernel_compiles_to_exact_arithmetic() -> None:
    """In a process of its own, as none is interpreted there."""
    done = subprocess.run(
        [sys.executable, "-m", "support.compiled_kernels"],
        cwd=TESTS,
        env={"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(TESTS.parent / ".cache" / "triton")},
        check=True,
        capture_output=True,
        text=True,
    )

    assembly: dict[str, str] = json.loads(done.stdout)
    found = {name for name, text in assembly.items() if APPROXIMATE.search(text)}
    assert len(assembly) >= 10
    assert not found


def test_warming_up_goes_the_ways_of_all_formats() -> None:
    """A kernel that it left out would be compiled in a training step."""
    forms = []
    for vector in vectors():
        [encoded] = LocalFeedback(vector, Replica.zeros(vector.size)).encode(2**24)
        forms.append(encoded[0])

    assert forms == [PLAIN, LISTED, EVERY, DENSE]
