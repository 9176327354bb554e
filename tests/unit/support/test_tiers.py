"""The tiers: the quick one names what it leaves out, and slices of the deep one are the whole."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]

SUITE = """
import pytest
from support import tiers

LOOPS = tiers.count(70, quick=7, of="loops")

@pytest.fixture(scope="module")
def shared():
    return object()

@pytest.mark.seeds(40)
def test_seeded(seed): ...

@pytest.mark.deep("takes a night")
def test_long(): ...

@pytest.mark.parametrize("number", range(5))
def test_sharing(shared, number): ...

def test_counted():
    assert LOOPS in (7, 70)
"""


def play(folder: Path, **environ: str) -> tuple[set[str], str]:
    """Run the suite with our plugin; return which tests passed, and what is shown."""
    (folder / "test_suite.py").write_text(SUITE)
    kept = {name: os.environ[name] for name in os.environ if name not in ("DEEP", "SLICE")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.tier_plugin", "-p", "no:cacheprovider",
         "-v", folder],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environ,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"::(\S+) PASSED", done.stdout)), done.stdout


def test_the_quick_tier_has_a_sample_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    passed, shown = play(tmp_path)

    assert len(passed) == 40 // 20 + 5 + 1
    for what in ("38 seeds", "63 loops", "tests: takes a night"):
        assert what in shown.partition("left to the deep tier")[2]


def test_the_slices_of_the_deep_tier_are_the_whole_and_share_no_test(tmp_path: Path) -> None:
    slices = [play(tmp_path, DEEP="1", SLICE=f"{k}/3")[0] for k in (1, 2, 3)]

    assert sum(map(len, slices)) == len(set.union(*slices)) == 40 + 1 + 5 + 1
    # What shares a fixture of its module is set up once.
    assert sorted(sum("sharing" in name for name in each) for each in slices) == [0, 0, 5]
