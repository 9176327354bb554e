"""docs/transcripts.md shows what terminals show: each scene there is played here.

Figures differ from time to time, and lines of several processes come in any order. So the page and
what was played are compared line by line without figures. A line that says what is waited
for is there or not, as long as the wait takes.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from gradwire.cli.app import main
from support.namespaces import Machine, can_have_machines, two_machines
from support.terminals import Terminal
from support.waiting import wait_for_process

REPOSITORY: Final = Path(__file__).parents[2]
PAGE: Final = REPOSITORY / "docs" / "transcripts.md"
SCRIPT: Final = REPOSITORY / "docs" / "examples" / "train.py"

MASTER: Final = "gradwire master --listen 0.0.0.0:40123 --key-file run.key --http off"

Shown = Mapping[str, tuple[str, list[str]]]
"""By whose terminal it is: the command, and what it shows."""

pytestmark = [
    pytest.mark.deep("transcripts of terminals, which are played"),
    pytest.mark.skipif(not can_have_machines(), reason="needs the right to make namespaces"),
]


class Stage:
    """A folder with keys, two machines, and terminals on them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.one, self.two = stack.enter_context(two_machines())
        self._stack = stack
        for key in ("run", "other"):
            assert main(["keygen", str(folder / f"{key}.key")]) == 0
        for key, names in (("run", ("one", "two")), ("other", ("stranger",))):
            for name in names:
                options = ["--worker", name, "--from", str(folder / f"{key}.key")]
                assert main(["keygen", *options, "--out", str(folder / f"{name}.key")]) == 0

    def open(self, command: str, machine: Machine | None = None) -> Terminal:
        """Type a command."""
        typed = (
            command.replace("gradwire ", f"{sys.executable} -m gradwire ", 1)
            .replace("python train.py", f"{sys.executable} {SCRIPT}")
            .replace("10.0.2.4", self.one.address)
        )
        in_shell = [*(machine or self.one).prefix, "sh", "-c", f"exec env {typed}"]
        return self._stack.enter_context(Terminal(in_shell, self.folder))

    def worker(self, name: str, steps: int, workers: int = 2) -> str:
        """Return the command of a worker."""
        options = f"--steps {steps}" + (f" --workers {workers}" if workers else "")
        key = f"GRADWIRE_KEY_FILE={name}.key"
        return f"GRADWIRE_MASTER=10.0.2.4:40123 {key} python train.py {options}"


def first_run(stage: Stage) -> Shown:
    command = "gradwire run -n 2 -- python train.py --steps 50"
    terminal = stage.open(command)
    assert terminal.wait() == 0
    return {"one machine": (command, terminal.lines)}


def two_machines_worker_first(stage: Stage) -> Shown:
    """Each is started when the one before shows that it waits."""
    commands = [stage.worker("one", 50), MASTER, stage.worker("two", 50)]
    one = stage.open(commands[0])
    # Before that, a master that begins just when TCP has its turn is reached over TCP.
    one.wait_for("nothing listens")
    master = stage.open(commands[1])
    one.wait_for("for 1 of 2 workers")
    two = stage.open(commands[2], stage.two)
    return _end(commands, one, master, two)


def two_machines_master_first(stage: Stage) -> Shown:
    commands = [stage.worker("one", 50), MASTER, stage.worker("two", 50)]
    master = stage.open(commands[1])
    master.wait_for("workers join with")
    two = stage.open(commands[2], stage.two)
    two.wait_for("for 1 of 2 workers")
    one = stage.open(commands[0])
    return _end(commands, one, master, two)


def _end(commands: list[str], one: Terminal, master: Terminal, two: Terminal) -> Shown:
    assert [one.wait(), two.wait()] == [0, 0]
    master.process.terminate()
    master.wait()
    replicas = {line for each in (one, two) for line in each.lines if line.startswith("replica")}
    assert len({line.split(",")[0] for line in replicas}) == 1
    titles = ("worker, first machine", "master, first machine", "worker, second machine")
    shown = zip(commands, (one, master, two), strict=True)
    return {
        title: (command, each.lines) for title, (command, each) in zip(titles, shown, strict=True)
    }


def killed_master(stage: Stage) -> Shown:
    commands = [MASTER, stage.worker("one", 100_000, 0)]
    first = stage.open(commands[0])
    first.wait_for("workers join with")
    worker = stage.open(commands[1])
    worker.wait_for("step 50")
    first.process.kill()
    first.wait()
    second = stage.open(commands[0])
    worker.wait_for("back at the master")
    lines = [line for line in worker.lines if not line.startswith("step")]
    worker.process.terminate()
    worker.wait()
    second.process.terminate()
    second.wait()
    return {
        "the master, until it is killed": (commands[0], first.lines),
        "the worker (without the steps that the script prints)": (commands[1], lines),
        "the next master": (commands[0], second.lines),
    }


def wrong_key(stage: Stage) -> Shown:
    commands = [MASTER, stage.worker("stranger", 50, 0)]
    master = stage.open(commands[0])
    master.wait_for("workers join with")
    worker = stage.open(commands[1], stage.two)
    assert worker.wait() == 1
    wait_for_process(lambda: any("refused" in line for line in master.lines), "a refusal")
    master.process.terminate()
    master.wait()
    last = [line for line in worker.lines if not line.startswith("  ")]
    return {
        "master, first machine": (commands[0], master.lines),
        "worker, second machine (without the line of the script)": (commands[1], last),
    }


SCENES: Final[dict[str, Callable[[Stage], Shown]]] = {
    "first-run": first_run,
    "worker-first": two_machines_worker_first,
    "killed-master": killed_master,
    "wrong-key": wrong_key,
}

SOMETIMES: Final = ("waiting", "waits", "compil", "staleness_bound=", "waited for")
"""Parts of lines that are there or not, as machine and processes are quick or slow."""

LATE_START: Final = r"goes on with (\d workers): the run has had \d+ updates"
"""What a worker says that hears of the start when another one has made its first steps already."""

FIGURES: Final = (
    (r"10\.213\.7\.1", "10.0.2.4"),
    (r"10\.213\.7\.2", "10.0.2.5"),
    (r"gradwire-keys-\w+", "gradwire-keys-k3vq_x2a"),
    (r"\b[0-9a-f]{16}\b", "5f0c2a9be1d34c77"),
    (r"(run keys?) [0-9a-f]{6}\b", r"\1 c14ce5"),
)


def as_shown(played: Shown) -> str:
    """Return what was played, for the page."""
    parts = []
    for title, (command, lines) in played.items():
        text = "\n".join([f"$ {command}", *lines])
        for pattern, figure in FIGURES:
            text = re.sub(pattern, figure, text)
        parts.append(f"*{title[0].upper()}{title[1:]}*\n\n```text\n{text}\n```")
    return "\n\n".join(parts)


def without_figures(text: str) -> set[str]:
    """Return the lines of a text without what differs from time to time."""
    text = re.sub(r"gradwire-keys-\w+", "", text)
    text = re.sub(LATE_START, r"begins with \1", text)
    lines = {re.sub(r"[0-9a-f]*\d[\w.,:]*|\s+", " ", line).strip() for line in text.splitlines()}
    return {line for line in lines if not any(part in line for part in SOMETIMES)}


def shown_of(name: str) -> str:
    page = PAGE.read_text(encoding="utf-8")
    return page.split(f"<!-- {name}: begin -->\n")[1].split(f"<!-- {name}: end -->")[0].strip()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_as_the_page_shows_it(stage: Stage, name: str) -> None:
    played = as_shown(SCENES[name](stage))

    assert without_figures(played) == without_figures(shown_of(name)), (
        "renew it with: make transcripts"
    )


def test_two_machines_start_in_any_order(stage: Stage) -> None:
    """Each worker trains with the other one, whichever of the three was started first."""
    played = two_machines_master_first(stage)

    for title, (_, lines) in played.items():
        begins = "run 'default' begins" if title.startswith("master") else "training begins with"
        assert any(begins in line for line in without_figures("\n".join(lines))), title


def renew() -> None:
    """Write the page anew."""
    page = PAGE.read_text(encoding="utf-8")
    for name, play in SCENES.items():
        with TemporaryDirectory() as folder, ExitStack() as stack:
            played = as_shown(play(Stage(Path(folder), stack)))
        before, _, rest = page.partition(f"<!-- {name}: begin -->\n")
        _, _, after = rest.partition(f"<!-- {name}: end -->")
        page = f"{before}<!-- {name}: begin -->\n\n{played}\n\n<!-- {name}: end -->{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    renew()
