"""Third-party packages: what is pinned, with which hashes, and what an audit says of them."""

import json
import os
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from supply_chain.audit import (
    CLEAN,
    INCOMPLETE,
    SERVICES,
    VULNERABLE,
    Answer,
    Findings,
    ask,
    collect,
    parse_answer,
    report,
)
from supply_chain.pins import (
    CONSTRAINTS,
    FOLDER,
    NOT_HASHED,
    REPOSITORY,
    canonical,
    environment_without_mirrors,
    leave_out,
    parse_hashes,
    parse_pins,
    wanted,
)

PINS = parse_pins(CONSTRAINTS.read_text(encoding="utf-8"))
HASHED = {name: (FOLDER / name).read_text(encoding="utf-8") for name in wanted()}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")

RENEW = "constraints.txt has changed since; run `make pins`"


def declared() -> list[Requirement]:
    """Return everything that pyproject.toml asks for, but for itself."""
    extras = PROJECT["optional-dependencies"].values()
    lines = dict.fromkeys(chain(PROJECT["dependencies"], *extras))
    return [each for each in map(Requirement, lines) if each.name != "gradwire"]


def test_every_line_of_the_constraints_is_an_exact_pin() -> None:
    lines = CONSTRAINTS.read_text(encoding="utf-8").split()

    assert all(re.fullmatch(r"[\w.-]+==(\d+!)?[\w.]+", line) for line in lines)
    assert lines == sorted(lines, key=lambda line: canonical(line.partition("==")[0]))
    assert len(PINS) == len(lines), "no package stands there twice"


@pytest.mark.parametrize("requirement", declared(), ids=lambda requirement: requirement.name)
def test_what_the_project_asks_for_is_pinned_to_a_version_that_it_allows(
    requirement: Requirement,
) -> None:
    pinned = Version(PINS[canonical(requirement.name)])

    assert pinned in requirement.specifier


def test_what_is_installed_here_is_what_is_pinned() -> None:
    installed = {}
    for name in PINS:
        try:
            installed[name] = Version(version(name)).public
        except PackageNotFoundError:
            continue  # its marker leaves it out on this machine

    assert installed == {name: PINS[name] for name in installed}
    assert {"aiohttp", "cryptography", "numpy"} <= installed.keys()


@pytest.mark.parametrize("name", HASHED)
def test_hashed_files_have_the_versions_of_the_constraints(name: str) -> None:
    hashed = parse_pins(HASHED[name])

    assert hashed == {package: PINS.get(package) for package in hashed}, RENEW


def test_the_file_for_development_leaves_out_torch_alone() -> None:
    hashed = parse_pins(HASHED["develop.txt"])

    assert hashed.keys() == PINS.keys() - NOT_HASHED, RENEW
    assert {"torch"} == NOT_HASHED


@pytest.mark.parametrize("name", HASHED)
def test_hashed_files_cover_what_they_are_for(name: str) -> None:
    needed = {canonical(Requirement(line).name) for line in wanted()[name]}

    assert needed <= parse_pins(HASHED[name]).keys(), RENEW


def test_the_file_for_running_has_nothing_that_only_developers_need() -> None:
    running = parse_pins(HASHED["runtime.txt"]).keys()
    developing = {
        canonical(Requirement(line).name) for line in PROJECT["optional-dependencies"]["dev"]
    }

    assert running & developing == set()


@pytest.mark.parametrize("name", HASHED)
def test_every_package_of_a_hashed_file_has_a_hash_of_its_own(name: str) -> None:
    hashes = parse_hashes(HASHED[name])

    assert hashes.keys() == parse_pins(HASHED[name]).keys()
    assert all(hashes.values())
    every = list(chain.from_iterable(hashes.values()))
    assert len(every) == len(set(every)), "no file belongs to two packages"


@pytest.mark.parametrize("name", HASHED)
def test_a_hashed_file_names_neither_an_index_nor_a_folder(name: str) -> None:
    """One left in by mistake would send everyone who installs from it there."""
    lines = HASHED[name].splitlines()

    pin = r"[\w.-]+==(\d+!)?[\w.]+( ; [^:/]+)?"
    allowed = re.compile(rf"#.*|{pin} \\|    --hash=sha256:[0-9a-f]{{64}}( \\)?")
    assert [line for line in lines if not allowed.fullmatch(line)] == []


def test_hashes_are_asked_for_without_the_mirrors_of_this_machine() -> None:
    environ = {
        "PIP_FIND_LINKS": "/mirror",
        "PIP_EXTRA_INDEX_URL": "file:///mirror",
        "HOME": "/home",
    }

    assert environment_without_mirrors(environ) == {"HOME": "/home", "PIP_CONFIG_FILE": os.devnull}


def test_what_only_a_package_without_hashes_needs_is_left_out_with_it() -> None:
    lines = {
        "accelerate": "-c constraints.txt, -r -",
        "cuda-bindings": "torch",
        "cuda-pathfinder": "cuda-bindings",
        "numpy": "-c constraints.txt, -r -, torch",
        "torch": "-c constraints.txt, accelerate",
    }
    text = "".join(
        f"{name}==1.0 \\\n    --hash=sha256:{n:064x}\n    # via {via}\n"
        for n, (name, via) in enumerate(lines.items())
    )

    kept = leave_out(text, {"torch"})

    assert parse_pins(kept) == {"accelerate": "1.0", "numpy": "1.0"}
    assert parse_hashes(kept) == {"accelerate": [f"{0:064x}"], "numpy": [f"{3:064x}"]}


def dependency(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": [], **more}


def test_an_answer_counts_only_what_was_looked_up() -> None:
    found = {"id": "CVE-1", "fix_versions": ["1.1"], "aliases": [], "description": ""}
    text = json.dumps(
        {
            "dependencies": [
                dependency("Good_One"),
                dependency("bad", vulns=[found, found | {"id": "CVE-2", "fix_versions": []}]),
                {"name": "unknown", "skip_reason": "Dependency not found"},
            ]
        }
    )

    answer = parse_answer(text)

    assert answer.known == {"good-one", "bad"}
    assert answer.vulnerabilities == (
        "bad==1.0: CVE-1, fixed in: 1.1",
        "bad==1.0: CVE-2, fixed in: none yet",
    )


def test_a_second_database_is_asked_only_for_what_the_first_did_not_know() -> None:
    asked: list[str] = []

    def answering(service: str) -> Answer:
        asked.append(service)
        return Answer(known=frozenset({"a"}) if service == "pypi" else frozenset({"a", "b"}))

    alone = collect({"a"}, answering)
    first = [*asked]
    both = collect({"a", "b"}, answering)

    assert first == ["pypi"]
    assert asked[1:] == list(SERVICES)
    assert alone.missing == both.missing == set()


def test_an_audit_that_could_not_ask_says_so_and_does_not_pass() -> None:
    findings = collect({"a", "b"}, lambda service: Answer(failure="no route"))

    status, lines = report(findings, 2)

    assert status == INCOMPLETE
    assert lines[0] == "2 of 2 pins could not be looked up:"
    assert [f"  {service}: no route" for service in SERVICES] == lines[1:3]
    assert "make audit" in lines[-1]


def test_an_audit_that_could_not_ask_for_some_names_them() -> None:
    findings = collect({"a", "b", "c"}, lambda service: Answer(known=frozenset({"b"})))

    status, lines = report(findings, 3)

    assert status == INCOMPLETE
    assert "  not looked up: a, c" in lines


@pytest.mark.parametrize("missing", [set(), {"b"}])
def test_a_vulnerability_is_reported_whatever_else_is_unknown(missing: set[str]) -> None:
    status, lines = report(Findings(["a==1.0: CVE-1, fixed in: 1.1"], ["pypi: x"], missing), 2)

    assert status == VULNERABLE
    assert lines[0] == "a==1.0: CVE-1, fixed in: 1.1"
    assert "make pins" in lines[-1]


def test_an_audit_that_found_nothing_says_how_much_it_looked_at() -> None:
    assert report(Findings(), 97) == (
        CLEAN,
        ["97 pins were looked up; none is known as vulnerable."],
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("service", SERVICES)
def test_a_database_out_of_reach_is_one_line_and_no_traceback(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens at the port of "discard"

    answer = ask(service)

    assert not answer.known
    assert answer.failure
    assert "\n" not in answer.failure
    assert "Traceback" not in answer.failure


def recipe(target: str) -> list[str]:
    """Return the commands of a make target as they would be run."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", target],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_checking_looks_for_insecure_code_and_needs_no_database() -> None:
    checks = recipe("check")

    assert any("bandit" in line and "protocol client server" in line for line in checks)
    assert not any("audit" in line for line in checks)
    assert any("supply_chain audit" in line for line in recipe("audit"))


@pytest.mark.parametrize(
    "target", re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split()
)
def test_every_make_target_can_be_run(target: str) -> None:
    assert recipe(target)


def test_what_a_make_target_runs_is_there() -> None:
    named = set(re.findall(r"\bpython (tests/\w+)", MAKEFILE))

    assert "tests/supply_chain" in named
    assert all(Path(REPOSITORY, folder, "__main__.py").exists() for folder in named)
