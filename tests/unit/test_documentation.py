"""The documentation says what is there: options, settings, metrics, files, exit statuses.

The tables between ``begin`` and ``end`` marks are generated; where one is out of date, the test
says how to renew it: ``python tests/unit/test_documentation.py``.
"""

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from typer.main import get_command

from gradwire import Session, SessionStats, Settings, join
from gradwire.cli.app import app
from gradwire.cli.commands import Commands, DeferredCommand
from gradwire.metrics import SessionCollector
from gradwire.optimizer.delays import Histogram
from gradwire_codecs import ResidualStatistics
from gradwire_protocol import Endpoint
from gradwire_protocol.settings import declared_settings
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.collector import MasterCollector
from gradwire_server.master.master import Master
from gradwire_server.metrics import ServerMetrics
from gradwire_udp import SocketCounters

REPOSITORY = Path(__file__).parents[2]

ARCHITECTURE_BYTES_MAX = 14 * 1024
"""What one reads before changing code, and no more; why things are so stands in docs/decisions."""


def settings_table() -> str:
    """Return README's table of settings."""
    rows = ["| setting | default | |", "| --- | --- | --- |"]
    for name, each in declared_settings(Settings).items():
        default = "" if each.default in (None, "") else f"`{each.default}`"
        rows.append(f"| `{name}` | {default} | {each.about.text.replace('`', '')} |")
    return "\n".join(rows)


def commands() -> dict[str, Any]:
    """Return every command of the command line, imported."""
    group = get_command(app)
    assert isinstance(group, Commands)
    found = {name: group.get_command(None, name) for name in group.list_commands(None)}
    return {name: c.load() for name, c in found.items() if isinstance(c, DeferredCommand)}


def options_table() -> str:
    """Return the table of the master's options."""
    command = commands()["master"]
    rows = ["| option | variable | default | |", "| --- | --- | --- | --- |"]
    for option in command.params:
        if option.name == "help":
            continue
        default = "" if option.default is None else f"`{option.default}`"
        rows.append(f"| `{option.opts[0]}` | `{option.envvar}` | {default} | {option.help} |")
    return "\n".join(rows)


def metrics_table() -> str:
    """Return the table of metrics."""
    metrics = ServerMetrics()
    endpoint = Endpoint(MasterConfig().connection, random_bytes=bytes)
    collector = MasterCollector(
        Master(MasterConfig(), metrics), endpoint.counters, SocketCounters()
    )
    metrics.registry.register(collector)
    rows = ["| metric | type | labels | |", "| --- | --- | --- | --- |"]
    for family in sorted(metrics.registry.collect(), key=lambda f: f.name):
        if not family.name.startswith("gradwire_"):
            continue
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {"leaves": "reason", "refusals": "reason", "http_refused": "reason",
                  "datagrams_dropped": "reason",
                  "relay_queue_bytes": "rank", "rtt_seconds": "rank",
                  "build": "version"}.get(family.name.removeprefix("gradwire_"), "")  # fmt: skip
        rows.append(
            f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |"
        )
    return "\n".join(rows)


def session_metrics_table() -> str:
    """Return the table of what a worker's collector has."""
    session = Mock(spec=Session)
    numbers = {f.name: 0 for f in fields(SessionStats)}
    residual = ResidualStatistics.of(np.empty(0, np.float32), 1.0)
    distributions = {
        f.name: Histogram().distribution()
        for f in fields(SessionStats)
        if f.name.endswith("distribution")
    }
    others = {"residual": residual, "staleness_by_rank": {0: 0.0}, **distributions}
    session.stats = SessionStats(**numbers | others)  # type: ignore[arg-type]
    rows = ["| metric | type | labels | |", "| --- | --- | --- | --- |"]
    for family in sorted(SessionCollector(session).collect(), key=lambda f: f.name):
        suffix = "_total" if family.type == "counter" else ""
        labels = ", ".join(label for label in family.samples[0].labels if label != "le")
        rows.append(
            f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |"
        )
    return "\n".join(rows)


GENERATED = {
    ("docs/thresholds.md", "session metrics"): session_metrics_table,
    ("README.md", "settings"): settings_table,
    ("server/README.md", "options"): options_table,
    ("server/README.md", "metrics"): metrics_table,
}


def between_marks(text: str, name: str) -> str:
    return text.split(f"<!-- {name}: begin -->\n")[1].split(f"<!-- {name}: end -->")[0]


@pytest.mark.parametrize(("file", "name"), GENERATED)
def test_generated_tables_are_current(file: str, name: str) -> None:
    text = (REPOSITORY / file).read_text(encoding="utf-8")

    assert between_marks(text, name).strip() == GENERATED[file, name](), (
        "renew it with: python tests/unit/test_documentation.py"
    )


def test_every_setting_is_a_keyword_of_join_and_the_other_way_round() -> None:
    keywords = set(signature(join).parameters) - {"target", "optimizer", "config"}

    assert (
        keywords == set(declared_settings(Settings)) == {field.name for field in fields(Settings)}
    )


def test_every_option_has_a_help_text() -> None:
    missing = [
        f"{name} {parameter.name}"
        for name, command in commands().items()
        for parameter in command.params
        if not parameter.help
    ]

    assert missing == []
    assert all(command.help for command in commands().values())


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_command_of_the_command_line_and_of_make_that_is_written_down_exists(
    name: str,
) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")

    assert set(re.findall(r"`?gradwire ([a-z]+)\b(?= -|`|\n)", text)) <= commands().keys()
    for target in re.findall(r"^\$ make ([\w-]+)|`make ([\w-]+)`", text, re.MULTILINE):
        assert f"\n{max(target)}:" in makefile


def test_files_that_the_documentation_names_exist() -> None:
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "protocol/README.md",
                 "server/README.md", "docs/guarantees.md", "docs/thresholds.md",
                 "docs/training_loops.md", "docs/integrations.md", "docs/estimate.md",
                 "docs/staleness.md", "docs/decisions/README.md"):  # fmt: skip
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
        paths = re.findall(r"`((?:docs|docker|tests|server|client|protocol)/[\w./-]*)`", text)
        folder = (REPOSITORY / name).parent if name.startswith("docs/") else REPOSITORY
        missing = [p for p in links if not (folder / p).exists()]
        missing += [p for p in paths if not (REPOSITORY / p).exists()]

        assert missing == []


def test_files_that_the_architecture_names_exist_and_it_stays_short() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    roots = [REPOSITORY, *REPOSITORY.glob("*/gradwire*")]
    roots += [root.parent for root in roots[1:]]

    named = re.findall(r"`((?:\w+/)+[\w.]*)`", text)

    assert [n for n in named if not any((root / n).exists() for root in roots)] == []
    assert len(text.encode()) <= ARCHITECTURE_BYTES_MAX


def test_every_decision_has_a_page_in_the_list() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))

    assert sorted(listed) == sorted(f.name for f in folder.glob("*.md") if f.name != "README.md")


def test_tests_that_the_promises_name_exist() -> None:
    text = (REPOSITORY / "docs" / "guarantees.md").read_text(encoding="utf-8")
    sections = text.split("\n## ")[1:]

    for section in sections:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section)
        assert named, f"nothing shows this: {section.splitlines()[0]}"
        for file, test in named:
            source = (REPOSITORY / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\b", source, re.MULTILINE), f"{file} has no {test}"


def test_tests_that_each_kind_of_training_loop_names_exist() -> None:
    text = (REPOSITORY / "docs" / "training_loops.md").read_text(encoding="utf-8")
    shorts = dict(re.findall(r"`([A-Z])` is `(tests/[\w/]+\.py)`", text))
    tables = re.findall(r"^\| .*\n\| ---.*\n((?:\| .*\n)+)", text, re.MULTILINE)

    assert len(tables) == text.count("\n| ---")
    for row in [row for table in tables for row in table.splitlines()]:
        assert "::test_" in row.split("|")[-2], f"nothing shows this: {row}"
    for file, test in re.findall(r"`([A-Z]|tests/[\w/]+\.py)::(\w+)`", text):
        source = (REPOSITORY / shorts.get(file, file)).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\b", source, re.MULTILINE), f"{file} has no {test}"


def renew() -> None:
    """Write the generated tables anew."""
    for (file, name), make in GENERATED.items():
        path = REPOSITORY / file
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace(
                f"begin -->\n{between_marks(text, name)}<!-- {name}: end",
                f"begin -->\n\n{make()}\n\n<!-- {name}: end",
            ),
            encoding="utf-8",
        )


if __name__ == "__main__":
    renew()
