"""The files with hashes have the versions that are tested."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]


def pins_in(file: Path) -> dict[str, str]:
    """Return the version of each package that a file pins, by its name as indexes compare it."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


PINS = pins_in(REPOSITORY / "constraints.txt")


def test_who_cites_gradwire_cites_the_version_that_is_here() -> None:
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["cff-version"] == "1.2.0"
    assert cited["authors"]


@pytest.mark.parametrize("name", ["runtime.txt", "build.txt", "develop.txt"])
def test_a_file_with_hashes_has_the_versions_of_the_constraints(name: str) -> None:
    hashed = pins_in(REPOSITORY / "requirements" / name)

    expected = {package: PINS.get(package) for package in hashed}
    assert hashed == expected, "constraints.txt has changed since; run `make pins`"
    assert hashed
    if name == "develop.txt":
        assert PINS.keys() - hashed.keys() == {"torch"}
