"""The two tiers of tests, and every count in which they differ.

The quick tier is what every change runs: all units, each capability once from end to end, and a
sample of everything that is drawn from a seed. The deep tier (``DEEP=1``, ``make test-deep``) is
the whole. Whatever the quick tier leaves out is noted in `LEFT_OUT`, and pytest's summary names it.

::

    HISTORIES = count(2_000, quick=100, of="histories with every fault")


    @pytest.mark.seeds(40)  # 2 of them in the quick tier
    def test_all_end_equal(seed: int) -> None: ...


    @pytest.mark.parametrize("transport", variants("udp", "tcp"))
    def test_all_join(transport: str) -> None: ...


    @pytest.mark.deep("kills processes for a minute")
    def test_a_minute_of_kills() -> None: ...

`support.tier_plugin` is what pytest sees of it.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

IS_DEEP: Final = os.environ.get("DEEP", "") not in ("", "0")
NAME: Final = "deep" if IS_DEEP else "quick"

SEEDS_PART: Final = 20
"""The quick tier plays one seed of so many."""
SEEDS_MIN: Final = 1

EXAMPLES: Final = {"quick": 25, "deep": 100, "nightly": 20_000}
"""Of each property that hypothesis looks for a counterexample of."""

DEEP_PATHS: Final = {
    "integration/page": "the master's page in Chromium",
    "integration/spark": "frameworks: clusters of Spark",
    "integration/test_bad_networks.py": "real sockets between network namespaces",
    "integration/test_chaos.py": "processes that are killed for a minute",
    "integration/test_compiled_modules.py": "frameworks: torch's compiler",
    "integration/test_packages.py": "packages: installed into empty environments",
    "integration/test_two_machines.py": "real processes between network namespaces",
    "session/integrations": "frameworks: Lightning, transformers, loggers",
}
"""Folders and files that are not even imported in the quick tier, and what is in them."""

APART: Final = {
    "packages": ("integration/test_packages.py",),
    "page": ("integration/page",),
    "spark": ("integration/spark", "unit/client/spark"),
    "frameworks": ("session/integrations", "integration/test_examples.py"),
}
"""Slices of the deep tier by name: what needs the packages of `make frameworks`.

They are in no slice by number. CI runs one where what it tests has changed. The page needs
Chromium as well; packages need none of it, and pip's index.
"""

LEFT_OUT: Final = Counter[str]()
"""What the quick tier leaves out, and how much of it."""


def count(deep: int, *, quick: int, of: str) -> int:
    """Return how many there are in this tier, and note what is left out of it.

    Parameters
    ----------
    deep, quick : int
        How many in each tier.
    of : str
        What is counted, for the summary.
    """
    if IS_DEEP:
        return deep
    LEFT_OUT[of] += deep - quick
    return quick


def seeds(deep: int, *, quick: int | None = None) -> list[int]:
    """Return the seeds that this tier plays: all, or some that are spread over all.

    Parameters
    ----------
    deep : int
        All seeds are those below it.
    quick : int, optional
        How many the quick tier plays; one of `SEEDS_PART` unless given.
    """
    if quick is None:
        quick = max(SEEDS_MIN, deep // SEEDS_PART)
    if IS_DEEP or quick >= deep:
        return list(range(deep))
    return [i * deep // quick for i in range(quick)]


def variants(first: T, *others: T) -> list[T]:
    """Return the values of a parameter: all, or in the quick tier the first one."""
    if IS_DEEP:
        return [first, *others]
    LEFT_OUT["variants of tests"] += len(others)
    return [first]


def examples(deep: int) -> int:
    """Return how many examples hypothesis tries of a property that needs its own number."""
    if IS_DEEP:
        return deep
    return max(5, deep * EXAMPLES["quick"] // EXAMPLES["deep"])


def reason_to_leave_out(path: Path, tests: Path) -> str | None:
    """Return why a folder or file below `tests` is left to the deep tier, or None."""
    return None if IS_DEEP else DEEP_PATHS.get(path.relative_to(tests).as_posix())


def load_hypothesis_profile() -> None:
    """Set how long hypothesis looks; a red run in CI is a real change: examples are the same."""
    for name, number in EXAMPLES.items():
        settings.register_profile(
            name,
            max_examples=number,
            derandomize=name != "nightly",
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", NAME))
