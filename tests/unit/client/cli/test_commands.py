"""A command is imported when it is asked for, and all are listed without being imported."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from gradwire.cli.app import EXIT_USAGE, app, main
from gradwire.cli.commands import OWN, Commands, DeferredCommand

HEAVY = {"numba", "aiohttp", "torch", "matplotlib", "gradwire_codecs", "gradwire_server"}


@pytest.fixture
def commands() -> dict[str, DeferredCommand]:
    """Return all commands of this project by their names."""
    group = get_command(app)
    assert isinstance(group, Commands)
    found = {name: group.get_command(None, name) for name in group.list_commands(None)}
    return {name: c for name, c in found.items() if isinstance(c, DeferredCommand)}


def loaded_by(*arguments: str) -> set[str]:
    """Return which packages a command line has imported by its end."""
    code = (
        "import sys; from gradwire.cli.app import main\n"
        f"try: main({arguments!r})\n"
        "finally: print('loaded', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.rpartition("loaded ")[2].split())


def other_distribution(folder: Path) -> None:
    """Install a package with a command of its own."""
    metadata = folder / "greeting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gradwire.commands]\ngreet = greeting:greet\n")
    (folder / "greeting.py").write_text(
        'def greet(name: str) -> None:\n    """Greet somebody."""\n    print(f"hello {name}")\n'
    )


def gradwire(folder: Path, *arguments: str) -> str:
    """Return what a command prints where the packages of a folder are installed besides."""
    code = f"import sys; sys.path.append({str(folder)!r}); import gradwire.__main__ as m; m.main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_help_lists_every_command_and_imports_none(
    commands: dict[str, DeferredCommand], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert commands.keys() == {*OWN, "master", "relay"}
    assert all(f"│ {name} " in shown for name in commands)
    assert loaded_by("--help") & HEAVY == set()


@pytest.mark.parametrize("name", ["run", "keygen"])
def test_a_command_that_computes_nothing_imports_no_compiler(name: str) -> None:
    assert loaded_by(name, "--help") & HEAVY == set()


def test_a_command_of_another_distribution_is_listed_and_runs(tmp_path: Path) -> None:
    other_distribution(tmp_path)

    assert "Greet somebody." in gradwire(tmp_path, "--help")
    assert gradwire(tmp_path, "greet", "world") == "hello world\n"


def test_a_name_that_is_none_gets_the_closest_one_suggested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["mastr"]) == EXIT_USAGE
    assert "Did you mean 'master'?" in capsys.readouterr().err


def test_a_process_looks_for_no_garbage_when_it_ends() -> None:
    code = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "from gradwire.cli.app import main; main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.split()[-1] == "True"


@pytest.mark.parametrize("between", [[], ["--"]], ids=["without --", "with --"])
@pytest.mark.parametrize(
    "behind",
    [
        ["-n", "2"],
        ["--listen", "0.0.0.0:1", "--epochs", "3"],
        ["--help"],
        ["-h"],
        ["--http=off", "--workers=9"],
        ["--no-such-option"],
        ["--", "-n", "2"],
        ["left", "-n", "2", "--", "right"],
    ],
    ids=" ".join,
)
def test_what_stands_behind_the_command_of_run_is_that_commands(
    between: list[str], behind: list[str]
) -> None:
    command = ["python", "args.py", *behind]
    run = DeferredCommand("run", OWN["run"]).load()

    context = run.make_context("run", ["-n", "1", "--http", "off", *between, *command])

    assert context.params["command"] == command
    assert (context.params["workers"], context.params["http"]) == (1, "off")


def test_an_option_before_the_command_is_runs_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-n", "1", "--epochs", "3", "python", "args.py"]) == EXIT_USAGE
    assert "--epochs" in capsys.readouterr().err


def test_other_commands_take_their_options_anywhere() -> None:
    operate = DeferredCommand("operate", OWN["operate"]).load()

    context = operate.make_context("operate", ["deny", "gpu1", "--http", "here"])

    assert (context.params["name"], context.params["http"]) == ("gpu1", "here")
