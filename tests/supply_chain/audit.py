"""Known vulnerabilities of what ``constraints.txt`` pins, as pip-audit finds them.

pip-audit leaves out what its database does not know and still ends with 0, and ends with a
traceback where the database is out of reach. Neither is an answer, so this asks two databases,
counts, and ends with

====  ========================================================
0     every pin was looked up, and none is known as vulnerable
1     something is vulnerable; it is listed
3     nothing was found, but some or all pins were not looked up
====  ========================================================
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from supply_chain.pins import CONSTRAINTS, canonical, parse_pins

SERVICES = ("pypi", "osv")
"""Asked in this order, until nothing is left to look up."""

ANSWER_SECONDS_MAX = 600
"""For one database: about 100 pins, asked for one after the other, at up to 6 s each."""

CLEAN, VULNERABLE, INCOMPLETE = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What one database said."""

    known: frozenset[str] = frozenset()
    """Packages that it looked up."""

    vulnerabilities: tuple[str, ...] = ()
    """One line for each, ready to be printed."""

    failure: str = ""
    """Why it said nothing; empty where it did."""


@dataclass(slots=True)
class Findings:
    """What all databases said together."""

    vulnerabilities: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)


Ask = Callable[[str], Answer]


def parse_answer(text: str) -> Answer:
    """Read pip-audit's JSON."""
    known, lines = set(), []
    dependencies: list[dict[str, Any]] = json.loads(text)["dependencies"]
    for dependency in dependencies:
        if "skip_reason" in dependency:
            continue
        known.add(canonical(dependency["name"]))
        for found in dependency["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "none yet"
            pin = f"{dependency['name']}=={dependency['version']}"
            lines.append(f"{pin}: {found['id']}, fixed in: {fixed}")
    return Answer(frozenset(known), tuple(lines))


def ask(service: str) -> Answer:
    """Have pip-audit look every pin up in one database."""
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service]
    command += ["--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS_MAX
        )
        return parse_answer(done.stdout)
    except subprocess.TimeoutExpired:
        return Answer(failure=f"no answer within {ANSWER_SECONDS_MAX} s")
    except ValueError:  # it printed no report; the last line of its traceback says why
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Answer(failure=last.rpartition("Caused by ")[2])


def collect(pinned: Iterable[str], ask: Ask) -> Findings:
    """Ask one database after the other for what the ones before did not know."""
    findings = Findings(missing=set(pinned))
    total = len(findings.missing)
    for service in SERVICES:
        answer = ask(service)
        findings.missing -= answer.known
        findings.vulnerabilities += answer.vulnerabilities
        unknown = f"knows {len(answer.known)} of {total} pins"
        findings.failures.append(f"{service}: {answer.failure or unknown}")
        if not findings.missing:
            break
    return findings


def report(findings: Findings, total: int) -> tuple[int, list[str]]:
    """Return the exit status and what to print."""
    lines = [*findings.vulnerabilities]
    if findings.missing:
        lines.append(f"{len(findings.missing)} of {total} pins could not be looked up:")
        lines += [f"  {failure}" for failure in findings.failures]
        if len(findings.missing) < total:
            lines.append(f"  not looked up: {', '.join(sorted(findings.missing))}")
        lines.append(
            "Nothing is known about these, good or bad. Run `make audit` where the databases of "
            "PyPI or of OSV can be reached."
        )
    if findings.vulnerabilities:
        lines.append("Raise these versions in constraints.txt, then run `make pins check test`.")
        return VULNERABLE, lines
    if findings.missing:
        return INCOMPLETE, lines
    return CLEAN, [f"{total} pins were looked up; none is known as vulnerable."]


def main() -> int:
    """Print what is known, and return the exit status."""
    pinned = parse_pins(CONSTRAINTS.read_text(encoding="utf-8"))
    status, lines = report(collect(pinned, ask), len(pinned))
    print("\n".join(lines))
    return status
