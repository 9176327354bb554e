"""The wheel and the sdist: built, installed into empty environments, and used as a user would.

With each Python that gradwire is for and that this machine has. No environment has torch.
"""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from support.processes import completed
from support.waiting import JOB

REPOSITORY = Path(__file__).parents[2]
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "version"
]
THIS = f"3.{sys.version_info.minor}"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

SIZE_TOLERANCE = 0.15
"""Platforms and versions of what we need differ."""

SCRIPT = """
import numpy as np

import gradwire
from gradwire import Averaging, GradwireError, Session, Settings


def train(parameters: np.ndarray[tuple[int], np.dtype[np.float32]], steps: int) -> str:
    with gradwire.join(parameters, master="127.0.0.1:1", mode=Averaging(every=8)) as session:
        taken: Session = session
        for _ in range(steps):
            parameters -= np.float32(0.5)
            taken.step()
        rank: int = taken.rank
        seconds: float = Settings().idle_timeout_seconds
        return f"{rank} {seconds} {taken.digest()}"


try:
    print(train(np.zeros(3, np.float32), 3))
except GradwireError as error:
    print(error)
"""

WRONG = """
import gradwire

session = gradwire.join([], master=7)
session.steps()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of both packages; the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, REPOSITORY],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return folder


def wheel_in(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


def sdist_in(built: Path) -> Path:
    [found] = built.glob("*.tar.gz")
    return found


def interpreter(version: str) -> str:
    """Return a Python of this version, or skip the test: pyenv's names are there without one."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for found in (sys.executable if version == THIS else "", f"python{version}", *pyenv):
        try:
            asked = completed([str(found), "-c", "import sys; print(sys.version_info[:2])"])
        except OSError:
            continue
        if asked.stdout.strip() == f"(3, {version.removeprefix('3.')})":
            return str(found)
    pytest.skip(f"there is no Python {version} on this machine")


@dataclass(frozen=True)
class Environment:
    """A new one, with gradwire and what it needs."""

    folder: Path
    variables: dict[str, str]

    def program(self, name: str) -> str:
        """Return the path of a program in it."""
        return str(self.folder / "bin" / name)

    def completed(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, with nothing of the repository in its way."""
        words = [str(word) for word in command]
        return completed(words, seconds=JOB, env=self.variables, cwd=self.folder)


def installed(package: Path, python: str, folder: Path) -> Environment:
    subprocess.run([python, "-m", "venv", folder], check=True)
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GRADWIRE_") and name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    variables["PATH"] = f"{folder / 'bin'}:{variables['PATH']}"
    new = Environment(folder, variables)
    pip = ["install", "--quiet", "--no-compile", "-c", REPOSITORY / "constraints.txt", package]
    done = new.completed(new.program("python"), "-m", "pip", *pip)
    assert done.returncode == 0, done.stderr
    return new


@pytest.fixture(scope="module")
def here(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment of the Python that runs the tests; it has the sdist."""
    return installed(sdist_in(built), sys.executable, tmp_path_factory.mktemp("here") / "new")


@pytest.mark.parametrize("version", PYTHONS)
def test_what_is_installed_trains_without_torch(
    built: Path, here: Environment, version: str, tmp_path: Path
) -> None:
    """The sdist with the Python that runs the tests, the wheel with the others."""
    new = here
    if version != THIS:
        new = installed(wheel_in(built), interpreter(version), tmp_path / "new")
    gradwire = new.program("gradwire")
    example = REPOSITORY / "docs" / "examples" / "numpy_loop.py"

    said = new.completed(gradwire, "--version")
    done = new.completed(gradwire, "run", "-n", "2", "--", "python", example, "--steps", "40")

    assert VERSION in said.stdout
    assert done.returncode == 0, done.stderr
    ends = re.findall(r"^\[\d\] replica (\w+), loss", done.stdout, re.MULTILINE)
    assert len(ends) == 2, done.stdout
    assert len(set(ends)) == 1
    torch = "import importlib.util as u; print(u.find_spec('torch'))"
    assert new.completed(new.program("python"), "-c", torch).stdout == "None\n"


def test_what_is_installed_has_the_size_that_we_state(here: Environment) -> None:
    packages = here.folder / "lib" / f"python{THIS}" / "site-packages"
    sizes = [
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and not path.relative_to(packages).parts[0].startswith("pip")
    ]
    page = (REPOSITORY / "docs" / "get-started.md").read_text(encoding="utf-8")
    [stated] = re.findall(r"takes (\d+) MB without torch", page)

    assert sum(sizes) / 1e6 == pytest.approx(int(stated), rel=SIZE_TOLERANCE)


def test_a_users_script_is_checked_strictly_against_our_types(
    here: Environment, tmp_path: Path
) -> None:
    (tmp_path / "fits.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--strict"]
    mypy += ["--python-executable", here.program("python")]

    fits = here.completed(*mypy, tmp_path / "fits.py")
    wrong = here.completed(*mypy, tmp_path / "wrong.py")

    assert (fits.returncode, fits.stderr) == (0, ""), fits.stdout
    assert wrong.returncode == 1
    assert re.findall(r"\[([a-z-]+)\]$", wrong.stdout, re.MULTILINE) == ["arg-type", "attr-defined"]


def test_the_wheel_has_the_packages_their_types_and_the_license_and_nothing_else(
    built: Path,
) -> None:
    with ZipFile(wheel_in(built)) as wheel:
        names = wheel.namelist()
    ours = {"gradwire", "gradwire_codecs", "gradwire_protocol", "gradwire_server", "gradwire_udp"}
    about = f"gradwire-{VERSION}.dist-info"

    assert {name.split("/")[0] for name in names} == {*ours, about}
    assert {f"{name}/py.typed" for name in ours} <= {*names}
    assert f"{about}/licenses/LICENSE" in names
