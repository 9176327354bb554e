"""The tiers: what each runs, that slices are the whole, and that nothing is left out in silence."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import tiers
from support.tier_plugin import parse_slice

TESTS = Path(__file__).parents[2]

SUITE = """
import time
import pytest
from support import tiers

tiers.PROCESSOR_SECONDS_MAX = 0.1
LOOPS = tiers.count(70, quick=7, of="loops")

@pytest.fixture(scope="module")
def shared():
    return object()

@pytest.mark.seeds(80)
def test_seeded(seed): ...

@pytest.mark.seeds(3, quick=2)
def test_seeded_a_little(seed): ...

@pytest.mark.deep("takes a night")
def test_long(): ...

@pytest.mark.parametrize("number", range(5))
def test_sharing(shared, number): ...

def test_counted():
    assert LOOPS in (7, 70)
"""

SLOW = """
import time
import pytest

@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.mark.processor_seconds(30, "it starts many processes")
def test_busy_as_it_may_be():
    test_busy(2.0)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def pytest_in(folder: Path, *options: str, **environ: str) -> tuple[int, str]:
    """Run a suite with our plugin; return the exit status and what is shown."""
    kept = {name: os.environ[name] for name in os.environ if name not in ("DEEP", "SLICE")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.tier_plugin", "-p", "no:cacheprovider",
         "-p", "xdist", "-v", *options, folder],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environ,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def passed(shown: str) -> list[str]:
    return re.findall(r"::(\S+) PASSED", shown)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_quick_tier_has_a_sample_and_says_what_it_leaves_out(
    suite: Path, options: tuple[str, ...]
) -> None:
    status, shown = pytest_in(suite, *options)

    assert status == 0, shown
    left_out = shown.partition("left to the deep tier")[2]
    seeds = 80 - 80 // tiers.SEEDS_PART + 1  # and one of three
    for what in (f"{seeds} seeds", "63 loops", "tests: takes a night"):
        assert what in left_out
    assert "the quick tier by folder, and its slowest tests" in shown


def test_the_deep_tier_is_the_whole_and_its_slices_add_up_to_it(suite: Path) -> None:
    whole = passed(pytest_in(suite, DEEP="1")[1])
    slices = [pytest_in(suite, DEEP="1", SLICE=f"{k}/3") for k in (1, 2, 3)]

    assert len(whole) == 80 + 3 + 1 + 5 + 1
    assert [status for status, _ in slices] == [0, 0, 0]
    parts = [set(passed(shown)) for _, shown in slices]
    assert sum(map(len, parts)) == len(whole)
    assert set.union(*parts) == set(whole)
    # What shares a fixture of its module is set up once.
    assert [part for part in parts if any("sharing" in name for name in part)] == [
        part for part in parts if sum("sharing" in name for name in part) == 5
    ]
    assert all("left to the deep tier" not in shown for _, shown in slices)


def test_a_quick_test_that_is_not_quick_fails_the_run(suite: Path) -> None:
    (suite / "test_slow.py").write_text(SLOW)

    status, shown = pytest_in(suite)
    deep_status, _ = pytest_in(suite, DEEP="1")

    assert status == 1
    [slow] = re.findall(r"TOO SLOW (\S+):", shown)
    assert slow.endswith("test_busy[2.0]")
    assert deep_status == 0


@pytest.mark.parametrize("text", ["9/8", "0/8", "x", "1/", "-1/8", "1/0"])
def test_what_is_no_slice_is_refused_by_its_value(text: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"SLICE={text}"):
        parse_slice(text)
