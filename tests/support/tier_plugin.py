"""What pytest does about tiers and slices, and what it says about them in the end.

In each process that runs tests: seeds of this tier, nothing of the other one, and of every test the
processor time that it took. In the one that shows the outcome (the only one, or xdist's
controller): what the tier left out, and the ten slowest tests. How long a test took never fails it.
"""

import os
import resource
from collections import Counter
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from support import tiers

SLOWEST_SHOWN: Final = 10
TESTS: Final = Path(__file__).parents[1]

_seconds_before = pytest.StashKey[float]()
_shared_seconds = pytest.StashKey[float]()


@dataclass(slots=True)
class Taken:
    """What a test took, setting it up and tearing it down included."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Without fixtures that it shares with others."""

    def __str__(self) -> str:
        return f"{self.seconds:6.1f} s, {self.processor_seconds:5.1f} of a processor"


@dataclass(slots=True)
class Summary:
    """What is known of the whole run, in the process that shows its outcome."""

    taken: dict[str, Taken] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def slowest(self) -> list[tuple[str, Taken]]:
        """The tests that took longest."""
        by_seconds = sorted(self.taken.items(), key=lambda item: -item[1].seconds)
        return by_seconds[:SLOWEST_SHOWN]

    @property
    def by_folder(self) -> dict[str, tuple[int, Taken]]:
        """How many tests each folder has, and what they took together."""
        counts = Counter(map(_folder, self.taken))
        folders = {folder: Taken() for folder in sorted(counts)}
        for name, each in self.taken.items():
            folders[_folder(name)].seconds += each.seconds
            folders[_folder(name)].processor_seconds += each.processor_seconds
        return {folder: (counts[folder], taken) for folder, taken in folders.items()}


_summary = pytest.StashKey[Summary]()


def _folder(name: str) -> str:
    """Return the folder of a test: of units, that of their package."""
    parts = name.partition("::")[0].split("/")[:-1]
    return "/".join(parts[:3])


def is_controlled(config: pytest.Config) -> bool:
    """Return whether this process runs tests for a controller, which shows their outcome."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier."""
    config.addinivalue_line("markers", "deep(what): a test of the deep tier only, and what it does")
    config.addinivalue_line(
        "markers", "seeds(deep, quick=None): once for each seed of the tier, as `seed`"
    )
    config.stash[_summary] = Summary()
    tiers.load_hypothesis_profile()


# Which tests there are.


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what the quick tier should not even import."""
    if not collection_path.is_relative_to(TESTS):
        return None
    what = tiers.reason_to_leave_out(collection_path, TESTS)
    if what is None:
        return None
    tiers.LEFT_OUT[f"{collection_path.relative_to(TESTS)}: {what}"] = 1
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test its seeds."""
    for mark in metafunc.definition.iter_markers("seeds"):
        [deep] = mark.args
        played = tiers.seeds(deep, **mark.kwargs)
        tiers.LEFT_OUT["seeds"] += deep - len(played)
        metafunc.parametrize("seed", played)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this tier, and of this slice of it."""
    wanted = set(_of_slice(_of_tier(items)))
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = [item for item in items if item in wanted]


def _of_tier(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    kept = []
    for item in items:
        mark = item.get_closest_marker("deep")
        if mark is None or tiers.IS_DEEP:
            kept.append(item)
        else:
            tiers.LEFT_OUT[f"tests: {mark.args[0]}"] += 1
    return kept


def _of_slice(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return those of the slice ``SLICE``; tests that share what was set up stay together."""
    text = os.environ.get("SLICE")
    if not text:
        return list(items)
    if text in tiers.APART:
        return [item for item in items if _apart(item.path) == text]
    number, count = parse_slice(text)
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        if _apart(item.path) is None:
            groups.setdefault(_shares(item), []).append(item)
    chosen = list(groups.values())[number - 1 :: count]
    return [item for group in chosen for item in group]


def _apart(path: Path) -> str | None:
    """Return the name of the slice that a file belongs to, if it has one."""
    for name, paths in tiers.APART.items():
        if any(path.is_relative_to(TESTS / each) for each in paths):
            return name
    return None


def parse_slice(text: str) -> tuple[int, int]:
    """Return ``3/16`` as two numbers.

    Raises
    ------
    pytest.UsageError
        If it is no such slice.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        named = " or ".join(tiers.APART)
        raise pytest.UsageError(
            f"SLICE={text}: say 1/16 to 16/16, the part to run of how many, or {named}"
        )
    return int(number), int(count)


def _shares(item: pytest.Item) -> Hashable:
    """Return what is the same for tests that share a fixture of their module."""
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    is_shared = any(each.scope in ("module", "class") for found in fixtures for each in found)
    return item.path if is_shared else item.nodeid


# What they take.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Begin to count."""
    item.stash[_seconds_before] = _processor_seconds()
    item.stash[_shared_seconds] = 0.0
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Note what a fixture takes that several tests share: it is not this one's."""
    before = _processor_seconds()
    try:
        return (yield)
    finally:
        item = request._pyfuncitem
        if fixturedef.scope != "function":
            item.stash[_shared_seconds] += _processor_seconds() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell with the last report of a test what it took."""
    report = yield
    if call.when == "teardown":
        taken = _processor_seconds() - item.stash[_seconds_before] - item.stash[_shared_seconds]
        report.user_properties.append(("processor_seconds", taken))
    return report


def _processor_seconds() -> float:
    """Return what this process and its children that have ended have taken."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


# What is said of it.


class Reporter:
    """Gathers and shows, in the process that does so.

    Parameters
    ----------
    summary : Summary
    """

    def __init__(self, summary: Summary) -> None:
        self._summary = summary

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a part of a test took."""
        taken = self._summary.taken.setdefault(report.nodeid, Taken())
        taken.seconds += report.duration
        if report.when == "teardown":
            properties = dict(report.user_properties)
            taken.processor_seconds = float(str(properties.get("processor_seconds", 0.0)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process of xdist has left out; each has left out the same."""
        self._summary.left_out |= Counter(node.workeroutput.get("left_out", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Take over what this process has left out."""
        self._summary.left_out |= tiers.LEFT_OUT

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show all of it."""
        say = terminalreporter.write_line
        taken = self._summary.taken
        if len(taken) > SLOWEST_SHOWN:
            terminalreporter.section(f"the {tiers.NAME} tier by folder, and its slowest tests")
            for folder, (count, each) in self._summary.by_folder.items():
                say(f"{count:6,} tests, {each}  {folder}")
            for name, each in self._summary.slowest:
                say(f"{each}  {name}")
        if self._summary.left_out:
            terminalreporter.section("left to the deep tier (make test-deep)")
            for what, number in sorted(self._summary.left_out.items()):
                say(f"{number:7,} {what}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Report here, unless a controller does."""
    if not is_controlled(session.config):
        reporter = Reporter(session.config.stash[_summary])
        session.config.pluginmanager.register(reporter, "tier reporter")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell a controller what was left out here."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(tiers.LEFT_OUT)
