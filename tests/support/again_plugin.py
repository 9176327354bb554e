"""What failed is tried again, alone: one after the other, in one process, with nothing beside it.

Tests run in more processes than there are cores, and beside whatever else a machine does. One that
fails there and passes alone says nothing of the code that changed; it is a defect of the test, or
of the code under load, and has to be mended. So it is listed in the last lines, and in the file
`PASSED_ALONE`, and does not fail the run. What fails twice fails.

This happens where many processes ran tests, in the process that shows their outcome.
"""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from support.tier_plugin import is_controlled

AGAIN_MAX: Final = 40
"""Where more have failed, something is broken that trying again does not mend."""

FAILED_FILE: Final = "TESTS_FAILED_ALONE"
"""Names the file in which the second run says what has failed in it."""

PASSED_ALONE: Final = Path(".cache") / "passed-alone"
"""Below the root; a line for each test, from several runs until someone takes it away."""


class Again:
    """Tries again what has failed.

    Parameters
    ----------
    config : pytest.Config
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, None] = {}
        self._is_whole = True
        """Whether all files could be collected."""
        self._passed_alone: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails, in its set-up and tear-down too."""
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected: no second run makes up for it."""
        if report.failed:
            self._is_whole = False

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Run it when the processes have ended, and before the summary is shown."""
        done = yield
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not self._failed:
            return done
        if len(self._failed) > AGAIN_MAX:
            self._say(f"{len(self._failed)} tests failed: too many to try each again, alone")
            return done
        failed_again = self._run(list(self._failed))
        if failed_again is None:
            return done
        self._passed_alone = [name for name in self._failed if name not in failed_again]
        if not failed_again and self._is_whole:
            session.exitstatus = pytest.ExitCode.OK
        if self._passed_alone:
            file = self._config.rootpath / PASSED_ALONE
            file.parent.mkdir(exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.writelines(f"{name}\n" for name in self._passed_alone)
        return done

    def pytest_unconfigure(self) -> None:
        """Say last what passed alone."""
        for name in self._passed_alone:
            print(f"passed alone: {name}")  # noqa: T201  # there is no reporter any more

    def _run(self, names: list[str]) -> set[str] | None:
        """Return which fail again; None where that run came to no end of its own."""
        self._say(f"{len(names)} failed; each is tried again, alone")
        file = self._config.rootpath / ".cache" / f"failed-alone-{os.getpid()}"
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        environ = {name: value for name, value in os.environ.items() if name != "SLICE"}
        command = [sys.executable, "-m", "pytest", "--numprocesses", "0", *names]
        status = subprocess.run(
            command, cwd=self._config.rootpath, env=environ | {FAILED_FILE: str(file)}, check=False
        ).returncode
        failed = set(file.read_text(encoding="utf-8").splitlines())
        file.unlink()
        return failed if status == (1 if failed else 0) else None

    def _say(self, what: str) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        reporter.ensure_newline()
        reporter.section(what)
        reporter._tw.flush()


class FailedFile:
    """Writes what fails, for the process that has started this one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a line."""
        if report.failed:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\n")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Try again where many processes run tests, and tell how it went where they are tried again."""
    config = session.config
    if FAILED_FILE in os.environ:
        config.pluginmanager.register(FailedFile(Path(os.environ.pop(FAILED_FILE))), "failed file")
    elif not is_controlled(config) and config.getoption("numprocesses", None):
        config.pluginmanager.register(Again(config), "again")
