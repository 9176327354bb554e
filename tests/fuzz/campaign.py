"""A campaign: targets fuzzed in turn, each in a process of its own, and what came of it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import monotonic
from typing import Final

from fuzz import corpus
from fuzz.limits import BASELINE

TESTS: Final = Path(__file__).parents[1]

EXIT_INTERRUPTED: Final = 72
"""libFuzzer's, after SIGINT."""

LOG_LINES_SHOWN: Final = 40
"""Of the log of a failure: the traceback, and what libFuzzer says about it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of fuzzing a target for a while; or of several turns."""

    target: str
    executions: int = 0
    seconds: float = 0.0
    """The start of the process included."""
    growth_mib: int = 0
    """By how much the memory of the process grew, at its peak."""
    features: int = 0
    """Coverage as libFuzzer counts it."""
    inputs: int = 0
    """In the corpus that reaches it."""
    failure: str = ""
    """Empty, or what to tell whoever has to mend it."""

    def then(self, later: "Turn") -> "Turn":
        """Return what came of both."""
        return replace(
            later,
            executions=self.executions + later.executions,
            seconds=self.seconds + later.seconds,
            growth_mib=max(self.growth_mib, later.growth_mib),
            failure=self.failure or later.failure,
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a turn lasts: until either is used up."""

    executions: int | None = None
    seconds: int | None = None
    seed: int | None = None
    """Of libFuzzer's generator; random unless given."""
    hang_seconds: int | None = None
    """What one execution may take, in place of `limits.TIMEOUT_SECONDS`."""

    @property
    def options(self) -> list[str]:
        """What libFuzzer is told."""
        named = {
            "runs": self.executions,
            "max_total_time": self.seconds,
            "seed": self.seed,
            "timeout": self.hang_seconds,
        }
        return [f"-{name}={value}" for name, value in named.items() if value is not None]


class Campaign:
    """Fuzzes targets.

    Parameters
    ----------
    cache : Path
        Folder for what is found: new inputs, those that fail, and logs.
    """

    def __init__(self, cache: Path = corpus.CACHE) -> None:
        self._cache = cache
        self._running = set[subprocess.Popen[bytes]]()
        self.interrupted = False
        """Whether Ctrl-C has ended it."""
        self._lock = Lock()

    def take_turns(self, targets: Sequence[str], budget: Budget, jobs: int) -> list[Turn]:
        """Fuzz every target once, so many at a time; the first failure ends no other's turn."""
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self.take_turn, target, budget) for target in targets]
            try:
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                self._interrupt()
                return [future.result() for future in futures]

    def take_turn(self, target: str, budget: Budget, module: str | None = None) -> Turn:
        """Fuzz one target.

        Parameters
        ----------
        target : str
        budget : Budget
        module : str, optional
            Where `check` is, if not in `targets`.
        """
        found, crashes, logs = (
            self._cache / kind / target for kind in ("corpus", "crashes", "logs")
        )
        for folder in (found, crashes, logs):
            folder.mkdir(parents=True, exist_ok=True)
        known = corpus.CHECKED_IN / target
        arguments = [
            module or corpus.module_of(target),
            target,
            "-print_final_stats=1",
            f"-artifact_prefix={crashes}/",
            *budget.options,
            str(found),
            *([str(known)] if known.is_dir() else []),
        ]
        log = logs / "last.log"
        began = monotonic()
        status = self._run([sys.executable, "-m", "fuzz.child", *arguments], log)
        seconds = monotonic() - began
        text = log.read_text(encoding="utf-8", errors="replace")
        turn = _read(target, seconds, text)
        if status in (0, EXIT_INTERRUPTED) or self.interrupted:
            return turn
        return replace(turn, failure=_describe(target, status, text, log))

    def merge(self, target: str) -> None:
        """Keep of everything known what is needed to reach as much; check that in."""
        self._cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self._cache) as temporary:
            folder = Path(temporary)
            merged = folder / "merged"
            merged.mkdir()
            corpus.keep(folder / "seeds", corpus.load(target).seeds())
            known = [folder / "seeds", self._cache / "corpus" / target, corpus.CHECKED_IN / target]
            log = self._cache / "merge.log"
            command = [corpus.launcher(folder, target), "-merge=1", merged]
            command += [each for each in known if each.is_dir()]
            status = self._run([str(part) for part in command], log)
            if status:
                raise RuntimeError(f"merging {target} ended with status {status}: see {log}")
            corpus.replace(target, merged)

    def _run(self, command: Sequence[str], log: Path) -> int:
        with TemporaryDirectory(dir=self._cache) as temporary, log.open("wb") as output:
            with self._lock:
                if self.interrupted:
                    return EXIT_INTERRUPTED
                process = subprocess.Popen(
                    command,
                    stdout=output,
                    stderr=output,
                    env=self._environment(temporary),
                    start_new_session=True,  # Ctrl-C reaches them through us, and only once
                )
                self._running.add(process)
            status = process.wait()
            with self._lock:
                self._running.discard(process)
            return status

    def _environment(self, temporary: str) -> dict[str, str]:
        numba = self._cache / "numba"
        numba.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if "GRADWIRE" not in name}
        return kept | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
            "PYTHONHASHSEED": "0",
            "TMPDIR": temporary,
            # What a kernel reads outside its arrays is then an `IndexError`.
            "NUMBA_BOUNDSCHECK": "1",
            "NUMBA_CACHE_DIR": str(numba),
        }

    def _interrupt(self) -> None:
        with self._lock:
            self.interrupted = True
            for process in self._running:
                os.killpg(process.pid, signal.SIGINT)


def total(turns: Iterable[Turn]) -> Turn:
    """Return what came of turns of several targets."""
    sum_of = Turn("all")
    for turn in turns:
        sum_of = replace(
            sum_of.then(turn),
            target="all",
            features=sum_of.features + turn.features,
            inputs=sum_of.inputs + turn.inputs,
        )
    return sum_of


def _read(target: str, seconds: float, text: str) -> Turn:
    """Return what libFuzzer's log says of a turn."""
    status = re.findall(r"^#(\d+)\s.* ft: (\d+) corp: (\d+)/.* rss: (\d+)Mb", text, re.MULTILINE)
    executions, features, inputs, rss = map(int, status[-1] if status else (0, 0, 0, 0))
    figures = dict(re.findall(r"^stat::(\w+):\s+(\d+)", text, re.MULTILINE))
    peak = int(figures.get("peak_rss_mb", rss))
    executions = int(figures.get("number_of_executed_units", executions))
    baseline = re.search(rf"^{BASELINE} (\d+)", text, re.MULTILINE)
    return Turn(
        target,
        executions,
        seconds,
        max(peak - int(baseline[1]), 0) if baseline else 0,
        features,
        inputs,
    )


def _describe(target: str, status: int, text: str, log: Path) -> str:
    """Return what to tell about a process that did not end well."""
    written = re.search(r"Test unit written to (\S+)", text)
    again = f"; again with: python tests/fuzz {target} {written[1]}" if written else ""
    end = "\n".join(text.splitlines()[-LOG_LINES_SHOWN:])
    return f"{target}: ended with status {status}{again}\nthe end of {log}:\n{end}"
