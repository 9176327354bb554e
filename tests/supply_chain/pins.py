"""Exact pins with hashes: ``requirements/*.txt``, made from ``constraints.txt``.

``constraints.txt`` says which version of what; it is edited by hand and covers everything. The
files made from it add the SHA-256 of every file that PyPI has for these versions, so that
``pip install --require-hashes`` takes nothing else, whoever stands between:

===========  =========================================================================
runtime.txt  what gradwire needs to run; the master's image installs it
build.txt    what builds the wheel
develop.txt  everything in ``constraints.txt``: the two above, tests, checks, drawings
===========  =========================================================================

torch is in none of them, nor what it brings along. It comes from one of several indexes, without
CUDA or with one of its versions; the files differ and so do their hashes, and gradwire itself runs
without it. Install it before ``develop.txt``, where there are packages that need it.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CONSTRAINTS = REPOSITORY / "constraints.txt"
FOLDER = REPOSITORY / "requirements"

NOT_HASHED = {"torch"}

BUILD_TOOL = "build"
"""The front end that `make check` and the Dockerfile call; pyproject.toml names the back end."""

HEADER = "# Written from constraints.txt by `make pins`; edit that, not this.\n"


def canonical(name: str) -> str:
    """Return a package's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_pins(text: str) -> dict[str, str]:
    """Return the version of each package that a file pins with ``name==version``."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)
    return {canonical(name): version for name, version in found}


def parse_entries(text: str) -> dict[str, str]:
    """Return what stands in a file from the pin of each package up to the next one."""
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    return {canonical(entry.partition("==")[0]): entry for entry in entries}


def parse_hashes(text: str) -> dict[str, list[str]]:
    """Return the SHA-256 digests that stand under each pin of a file."""
    return {
        name: re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        for name, entry in parse_entries(text).items()
    }


def leave_out(text: str, packages: Collection[str]) -> str:
    """Return pip-compile's answer without some packages, and without what came with these alone.

    Parameters
    ----------
    text : str
        With an annotation on one line for each package: which others need it.
    packages : collection of str
        Canonical names.
    """
    entries = parse_entries(text)
    needed_by = {
        name: {
            canonical(source.strip())
            for line in re.findall(r"^ +# via (.*)$", entry, re.MULTILINE)
            for source in line.split(",")
            if not source.strip().startswith("-c ")  # a constraint needs nothing
        }
        for name, entry in entries.items()
    }
    left_out = set(packages)
    while more := {
        name
        for name, sources in needed_by.items()
        if name not in left_out and sources and sources <= left_out
    }:
        left_out |= more
    return "".join(entry for name, entry in entries.items() if name not in left_out)


def wanted() -> dict[str, list[str]]:
    """Return what each file has to cover, by its name; what those need in turn is added."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return {
        "runtime.txt": project["project"]["dependencies"],
        "build.txt": [BUILD_TOOL, *project["build-system"]["requires"]],
        "develop.txt": [
            line for line in pinned if canonical(line.partition("==")[0]) not in NOT_HASHED
        ],
    }


def environment_without_mirrors(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which pip asks PyPI, whatever this machine's configuration says.

    A mirror can have fewer files, or its own builds: their hashes would fit nobody else.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("PIP_")}
    return kept | {"PIP_CONFIG_FILE": os.devnull}


def resolve(requirements: list[str]) -> str:
    """Return the pins and hashes of some requirements and of all that they need.

    Raises
    ------
    subprocess.CalledProcessError
        PyPI is out of reach, or ``constraints.txt`` contradicts itself; pip-compile has said which.
    """
    options = ["--quiet", "--no-config", "--strip-extras", "--allow-unsafe", "--generate-hashes"]
    options += ["--no-header", "--annotation-style", "line", "--constraint", str(CONSTRAINTS)]
    command = [sys.executable, "-m", "piptools", "compile", *options, "--output-file", "-", "-"]
    done = subprocess.run(
        command,
        input="\n".join(requirements),
        stdout=subprocess.PIPE,
        env=environment_without_mirrors(os.environ),
        check=True,
        text=True,
    )
    lines = leave_out(done.stdout, NOT_HASHED).splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() and not line.strip().startswith("#"))


def main() -> int:
    """Write all files, or, where one cannot be made, none."""
    try:
        made = {name: HEADER + resolve(needs) for name, needs in wanted().items()}
    except subprocess.CalledProcessError as error:
        print(f"pip-compile ended with {error.returncode}; nothing was written", file=sys.stderr)
        return 1
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"requirements/{name}: {len(parse_pins(text))} packages")
    return 0
